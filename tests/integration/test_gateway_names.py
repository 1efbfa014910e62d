"""A caller's own name for the policy, and the turn's id, stand where the answer names itself, and nowhere else."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.serving_stack import Stack, running

pytestmark = pytest.mark.integration
CALL = {"tool": "Task", "arguments": {"model": "policy", "id": "chatcmpl-1"}}
SAID: list = [{"role": "user", "content": "spawn"}]
DEFAULT: dict = {"type": "object", "default": {"model": "policy"}}
TOOL = {"name": "Task", "description": "d", "parameters": DEFAULT}
BODIES: dict[str, dict] = {
    "/v1/chat/completions": {"messages": SAID, "tools": [{"type": "function", "function": TOOL}]},
    "/v1/completions": {"prompt": "spawn"},
    "/v1/messages": {"messages": SAID, "max_tokens": 400, "tools": [{"name": "Task", "input_schema": DEFAULT}]},
    "/v1/responses": {"input": "spawn", "tools": [{"type": "function", **TOOL}], "metadata": {"model": "policy"}},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Control, gateway and a stand-in engine that calls a tool; any model's name is the policy's."""
    with running(tmp_path_factory.mktemp("names"), settings={"default_policy": "policy"}) as stack:
        stack.shared_key = stack.key("inference")
        stack.settle()
        (engine,) = stack.control("GET", "/v1/fleet").json()["engines"]
        httpx.post(f"{engine['url']}/stand-in", json={"scripts": {"spawn": [CALL]}}).raise_for_status()
        yield stack


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_the_answer_is_named_as_asked_for_and_says_what_was_recorded(stack: Stack, path: str, stream: bool) -> None:
    reply = httpx.post(
        stack.gateway_url + path,
        json={"model": 'claude "x"', "stream": stream, **BODIES[path]},
        headers={"authorization": f"Bearer {stack.shared_key}"},
        timeout=60,
    )
    assert reply.status_code == 200
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: {")] if stream else [reply.text]
    events = [json.loads(line) for line in lines]
    answers = [event.get("message", event.get("response", event)) for event in events]
    answers = [answer for answer in answers if "model" in answer]
    (turn,) = stack.turns(answers[0]["id"])
    assert {(answer["model"], answer["id"]) for answer in answers} == {('claude "x"', turn.turn_id)}
    if stream and path == "/v1/responses":
        assert events[-1]["response"]["model"] == 'claude "x"'
    for answer in answers:
        assert answer.get("metadata") in (None, {"model": "policy"})
        assert all(tool["parameters"] == DEFAULT for tool in answer.get("tools", ()))
    if path == "/v1/messages" and not stream:
        assert events[0]["content"][0]["input"] == json.loads(turn.answer)["content"][0]["input"] == CALL["arguments"]
