"""Unmodified harnesses run a task with tools and subagents to its end, through a gateway and a scripted engine.

Their turns are read from the spool: all of one session, each under its parent, a subagent's as a branch of its own.
"""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from ingest.contracts.turn import Finish, Turn
from tests.integration.serving_stack import Stack, running, wait_until
from tests.interop import harnesses
from tests.interop.harnesses import Launch, Place, pi_on
from tests.interop.scripts import BRANCH, DONE, SCRIPTS, TASK, WRITE
from tests.stand_in_formats import FORMATS

pytestmark = pytest.mark.integration
CONTEXT = 65536


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Control, gateway and a scripted engine with a long context."""
    with running(tmp_path_factory.mktemp("interop"), engine=False) as stack:
        limits = ("--max-model-len", str(CONTEXT))
        stack.engine_url = stack.start_engine("engine", "--control", stack.control_url, *limits)
        wait_until(lambda: stack.control("GET", "/v1/fleet").json()["converged"]["policy"], "the engine")
        yield stack


@pytest.mark.parametrize(
    ("name", "launch", "dialect"),
    [
        ("claude-code", harnesses.claude_code, "messages"),
        ("codex", harnesses.codex, "responses"),
        ("pi", pi_on("openai-completions"), "chat"),
        ("pi", pi_on("openai-responses"), "responses"),
        ("pi", pi_on("anthropic-messages"), "messages"),
        ("hermes", harnesses.hermes, "chat"),
        ("openhands", harnesses.openhands, "chat"),
    ],
    ids=["claude-code", "codex", "pi-chat", "pi-responses", "pi-messages", "hermes", "openhands"],
)
def test_a_task_with_tools(
    stack: Stack, tmp_path: Path, name: str, launch: Callable[[Place, str], Launch], dialect: str
) -> None:
    script = SCRIPTS[name]
    httpx.post(f"{stack.engine_url}/stand-in", json={"scripts": script}).raise_for_status()
    before = {turn.turn_id for turn in turns(stack)}
    place = Place.below(tmp_path, stack.gateway_url, stack.key("inference"), "policy")
    ran = harnesses.run(launch(place, f"{TASK}: begin"), place)
    assert ran.status == 0, ran.output
    assert name == "openhands" or DONE in ran.output, ran.output
    if WRITE in json.dumps(script):
        assert (place.work / "made.txt").read_text() == "one\n", ran.output

    expected = sum(map(len, script.values()))

    def new() -> list[Turn]:
        return [turn for turn in turns(stack) if turn.turn_id not in before]

    wait_until(lambda: len(new()) >= expected, f"{expected} turns of {name}:\n{ran.output}")
    taken = new()
    assert len(taken) == expected, [turn.answer for turn in taken]
    assert {turn.dialect for turn in taken} == {dialect}
    for turn in taken:
        assert turn.check() is None
        assert turn.output_ids
        assert turn.finish in (Finish.STOP, Finish.TOOL_CALLS)
        assert turn.trainable, turn.untrainable_reason
    branches = {word: [turn for turn in taken if opened_by(turn) == word] for word in script}
    for word, steps in script.items():
        chain = branches[word]
        assert [said(turn) for turn in chain] == [step.get("tool") or step["text"] for step in steps]
        assert len(chain[0].prefix_hashes) == 2, "it opens its conversation"
        for parent, child in pairwise(chain):
            assert child.prefix_hashes[-3] == parent.prefix_hashes[-1]
    names_sessions = name != "hermes"
    assert len({turn.session_id for turn in taken}) == (1 if names_sessions else len(script))


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
    parts = answer.get("output") or answer["content"]
    if answer.get("tool_calls"):
        return answer["tool_calls"][0]["function"]["name"]
    if isinstance(parts, str):
        return parts
    (part,) = parts
    return part.get("name") or part.get("text") or part["content"][0]["text"]
