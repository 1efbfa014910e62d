"""Unmodified harnesses, installed from their registries, through a gateway: a scripted engine, then vLLM.

The scripted engine calls tools and subagents, and ends each task. vLLM serves a random model, which calls none: what it
shows is that a harness's own requests reach an engine as they are, whole. Turns are read from the spool.
"""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from ingest.contracts.arrays import unpack_ids
from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.turn import Finish, Span, Turn
from pipelines.stack.addresses import free_port
from tests.checkpoint_folders import complete
from tests.integration.serving_stack import Stack, wait_until
from tests.interop import harnesses
from tests.interop.harnesses import Launch, Place, Ran
from tests.interop.scripts import BRANCH, DONE, SCRIPTS, TASK, WRITE
from tests.interop.talker import CONTEXT, make_talker
from tests.stand_in_formats import FORMATS
from tests.tiny_models import tokenizer

pytestmark = [pytest.mark.integration, pytest.mark.engine]
START_SECONDS = 600.0
HARNESSES = {
    "claude-code": (harnesses.claude_code, "messages"),
    "codex": (harnesses.codex, "responses"),
    "pi": (harnesses.pi("openai-completions"), "chat"),
    "pi-responses": (harnesses.pi("openai-responses"), "responses"),
    "pi-messages": (harnesses.pi("anthropic-messages"), "messages"),
    "hermes": (harnesses.hermes, "chat"),
    "openhands": (harnesses.openhands, "chat"),
}
"""How each is started, and the format that it speaks."""
NAMELESS = ("hermes",)
"""Gives its sessions no name: each conversation is one of its own, a subagent's too."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Control, gateway, the scripted engine of the policy `scripted`; vLLM, for `random`, is still starting."""
    home = tmp_path_factory.mktemp("interop")
    stack, weights = Stack(home), home / "checkpoints"
    model = make_talker(weights / "random" / "v1" / EXPORT)
    complete(model.parent)
    try:
        stack.start_control()
        for name, version, path in (("scripted", "base", "/nowhere"), ("random", "v1", str(model))):
            body = {"name": name, "desired": {"version": version, "path": path}}
            stack.control("PUT", f"/v1/policies/{name}", body).raise_for_status()
        where = ("--control", stack.control_url, "--max-model-len", str(CONTEXT))
        served = ("--policy", "random", "--version", "v1", "--model", str(model), "--weights-root", str(weights))
        tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        stack.start("agent", "serving.engines.vllm", *where, *served, "--port", str(free_port()), "--", *tools)
        stack.engine_url = stack.start_engine("engine", *where, "--model", "scripted")
        stack.start_gateway("--segment-seconds", "0.5")
        until_served(stack, "scripted")
        stack.shared_key = stack.key("inference")
        yield stack
    finally:
        if "agent" in stack.processes:
            stack.stop("agent")  # with its vLLM
        stack.stop_all()


def until_served(stack: Stack, policy: str) -> None:
    """Returns when an engine of the policy is in service."""
    wait_until(lambda: stack.control("GET", "/v1/fleet").json()["converged"][policy], policy, START_SECONDS)


@pytest.mark.parametrize("name", HARNESSES)
def test_a_task_with_tools_and_subagents(stack: Stack, tmp_path: Path, name: str) -> None:
    launch, dialect = HARNESSES[name]
    script = SCRIPTS[name.partition("-")[0] if name.startswith("pi") else name]
    httpx.post(f"{stack.engine_url}/stand-in", json={"scripts": script}).raise_for_status()
    ran, work, taken = take(stack, tmp_path, launch, "scripted", f"{TASK}: begin", sum(map(len, script.values())))
    assert DONE in ran.output
    if WRITE in json.dumps(script):
        assert (work / "made.txt").read_text() == "one\n", ran.output
    for turn in taken:
        assert turn.dialect == dialect
        assert turn.finish in (Finish.STOP, Finish.TOOL_CALLS)
    for word, steps in script.items():
        chain = [turn for turn in taken if opened_by(turn) == word]
        assert [said(turn) for turn in chain] == [step.get("tool") or step["text"] for step in steps]
        assert len(chain[0].prefix_hashes) == 2, "it opens its conversation"
        for parent, child in pairwise(chain):
            assert child.prefix_hashes[-3] == parent.prefix_hashes[-1]
    assert len({turn.session_id for turn in taken}) == (len(script) if name in NAMELESS else 1)


@pytest.mark.parametrize("name", [name for name in HARNESSES if name not in ("pi-responses", "pi-messages")])
def test_a_turn_of_vllm(stack: Stack, tmp_path: Path, name: str) -> None:
    until_served(stack, "random")
    launch, dialect = HARNESSES[name]
    ran, _, (turn,) = take(stack, tmp_path, launch, "random", "Talk to me.", 1)
    ids = list(unpack_ids(turn.output_ids))
    assert (turn.dialect, turn.finish) == (dialect, Finish.STOP)
    assert turn.weight_versions == (Span("v1", 0, len(ids)),)
    assert tokenizer().decode(ids, skip_special_tokens=True).strip() in ran.output
    assert "Talk to me." in tokenizer().decode(list(unpack_ids(turn.prompt_ids)))


def take(
    stack: Stack, folder: Path, launch: Callable[[Place, str], Launch], policy: str, prompt: str, expected: int
) -> tuple[Ran, Path, list[Turn]]:
    """Runs the harness to its end; how it ended, its working folder, and its turns in the order of asking."""
    before = {turn.turn_id for turn in turns(stack)}
    place = Place.below(folder, stack.gateway_url, stack.shared_key, policy)
    ran = harnesses.run(launch(place, prompt), place)
    assert ran.status == 0, f"{ran.output}\n{(stack.home / 'gateway.log').read_text()[-3000:]}"

    def new() -> list[Turn]:
        return [turn for turn in turns(stack) if turn.turn_id not in before]

    wait_until(lambda: len(new()) >= expected, f"{expected} turns:\n{ran.output}")
    taken = new()
    assert len(taken) == expected, [turn.answer for turn in taken]
    for turn in taken:
        assert turn.check() is None
        assert turn.output_ids
        assert turn.trainable, turn.untrainable_reason
    return ran, place.work, taken


def turns(stack: Stack) -> list[Turn]:
    """All turns on the log, in the order of asking."""
    return sorted((event for event in stack.events() if isinstance(event, Turn)), key=lambda turn: turn.started_at)


def opened_by(turn: Turn) -> str:
    """The script's word with which its conversation begins."""
    (form,) = (form for form in FORMATS if form.name == turn.dialect)
    text, _ = form.said(json.loads(turn.request))
    return min((word for word in (TASK, BRANCH) if word in text), key=text.index)


def said(turn: Turn) -> str:
    """The name of the tool that the answer calls, or its text."""
    answer = json.loads(turn.answer)
    if answer.get("tool_calls"):
        return answer["tool_calls"][0]["function"]["name"]
    parts = answer.get("output") or answer["content"]
    if isinstance(parts, str):
        return parts
    (part,) = parts
    return part.get("name") or part.get("text") or part["content"][0]["text"]
