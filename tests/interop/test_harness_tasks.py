"""A task of two runs through each harness, with a scripted engine: one tree of turns, whatever the harness does.

In the first run the engine calls tools and subagents at once, breaks off in mid-answer, and fails; the second run, a
new process, goes on with the task, is refused at first, and has its conversation compacted. The table in
`docs/harnesses.md` says what these tests see. Turns are read from the spool.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from ingest.contracts.turn import Finish, Turn
from tests.integration.serving_stack import Stack, wait_until
from tests.interop import harnesses
from tests.interop.harnesses import CONTEXT, HARNESSES, Launch, Place, Ran
from tests.interop.recorded import said, turns, until_served
from tests.interop.scripts import AFTER, AGAIN, DONE, FIRST, KEPT, LEFT, RIGHT, SCRIPTS, SUMMARY, TASK, WRITE
from tests.stand_in_formats import FORMATS

pytestmark = pytest.mark.integration
FAULTS = ["", "cut", "error500", "error500"]
"""The second answer breaks off; the next try fails on both of the gateway's, and the one after that succeeds."""
PLACES = 4
"""How many requests of a harness may be in progress at once."""
HELD = "held-everloop"
NAMELESS = ("hermes", "pi-messages")
"""Give their sessions no name: each conversation is one of its own, a subagent's too."""
ASK_OUTSIDE = ("hermes", "pi", "pi-responses", "pi-messages")
"""Ask for a summary in a conversation of its own, without the session's name; the others within the session."""


@dataclass(frozen=True)
class Task:
    """What came of both runs."""

    name: str
    script: dict[str, list[dict]]
    runs: tuple[Ran, Ran]
    work: Path
    turns: list[Turn]

    def after(self, *words: str) -> list[Turn]:
        """The answers that came after one of these words of the script."""
        return [turn for turn in self.turns if turn is not self.lost and last_word(turn, self.script) in words]

    @property
    def lost(self) -> Turn:
        """The turn that broke off."""
        (lost,) = (turn for turn in self.turns if turn.finish is Finish.ENGINE_LOST)
        return lost

    @property
    def asks(self) -> list[Turn]:
        """The requests for a summary."""
        return self.after(*SUMMARY[self.name])

    def parent(self, turn: Turn) -> Turn | None:
        """The turn whose prompt and answer are the longest beginning of this one's prompt."""
        ended = {other.prefix_hashes[-1]: other for other in self.turns if other.answer}
        heard = turn.prefix_hashes[: -2 if turn.answer else -1]
        return next((ended[link] for link in reversed(heard) if link in ended), None)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Control, a gateway, and the scripted engine of the policy `scripted`."""
    stack = Stack(tmp_path_factory.mktemp("tasks"))
    try:
        stack.start_control()
        body = {"name": "scripted", "desired": {"version": "base", "path": "/nowhere"}}
        stack.control("PUT", "/v1/policies/scripted", body).raise_for_status()
        where = ("--control", stack.control_url, "--max-model-len", str(CONTEXT))
        stack.engine_url = stack.start_engine("engine", *where, "--model", "scripted")
        stack.start_gateway("--segment-seconds", "0.5")
        until_served(stack, "scripted")
        yield stack
    finally:
        stack.stop_all()


@pytest.fixture(scope="module", params=HARNESSES)
def task(request: pytest.FixtureRequest, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Both runs of a harness."""
    name = request.param
    driver, _ = HARNESSES[name]
    script = SCRIPTS[name]
    others = {turn.key_id for turn in turns(stack)}
    key = stack.key("inference", concurrency=PLACES)
    place = Place.below(tmp_path_factory.mktemp(name), stack.gateway_url, key, "scripted")
    httpx.post(f"{stack.engine_url}/stand-in", json={"scripts": script, "faults": FAULTS}).raise_for_status()
    begin = harnesses.run(driver(place, f"{TASK}: begin"), place)
    prompts = [f"{AGAIN}: go on", f"{AFTER}: finish"] if name.startswith("pi") else [f"{AGAIN}: go on"]
    resumed = run_refused(stack, driver(place, *prompts, resume=True), place)
    taken: list[Turn] = []

    def ended() -> bool:
        taken[:] = [turn for turn in turns(stack) if turn.key_id not in others and HELD not in turn.request]
        return any(turn.answer and DONE in turn.answer for turn in taken)

    wait_until(ended, f"the end:\n{begin.output}\n{resumed.output}\n{(stack.home / 'gateway.log').read_text()[-3000:]}")
    return Task(name, script, (begin, resumed), place.work, taken)


def run_refused(stack: Stack, launch: Launch, place: Place) -> Ran:
    """Runs a harness whose key has all its places taken, until one of its requests was refused."""
    httpx.post(f"{stack.engine_url}/stand-in", json={"faults": ["hold"] * PLACES}).raise_for_status()
    ask = {"model": place.model, "stream": True, "messages": [{"role": "user", "content": HELD}]}
    before = refused(stack)
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as held:
            for _ in range(PLACES):
                headers = {"authorization": f"Bearer {place.key}"}
                held.enter_context(httpx.stream("POST", f"{place.url}/v1/chat/completions", json=ask, headers=headers))
            running = pool.submit(harnesses.run, launch, place)
            wait_until(lambda: running.done() or refused(stack) > before, "a refusal")
        assert refused(stack) > before
        return running.result()


def refused(stack: Stack) -> float:
    """How many requests the gateway refused for a limit."""
    counted = stack.metrics().items()
    return sum(
        count for name, count in counted if name.startswith("everloop_requests_total") and 'status="429"' in name
    )


def test_both_runs_end_and_every_turn_is_whole(task: Task) -> None:
    for ran, words in zip(task.runs, (FIRST, DONE), strict=True):
        assert ran.status == 0, ran.output
        assert words in ran.output
    if WRITE in json.dumps(task.script):
        assert (task.work / "made.txt").read_text() == "one\n"
    for turn in task.turns:
        assert turn.dialect == HARNESSES[task.name][1]
        assert turn.check() is None
        if turn is not task.lost:
            assert turn.finish in (Finish.STOP, Finish.TOOL_CALLS)
            assert turn.output_ids
            assert turn.trainable, turn.untrainable_reason
    for word, steps in task.script.items():
        expected = [words_of(step) for step in steps if step is not KEPT]
        given = [said(turn) for turn in task.after(word)]
        if word in SUMMARY[task.name]:  # Pi asks for it more than once
            assert given
            assert given == expected * len(given)
        else:
            assert given == expected


def test_each_turn_is_under_the_one_before_it(task: Task) -> None:
    for word in (TASK, LEFT, RIGHT):
        chain = task.after(word)
        assert not chain or task.parent(chain[0]) is None, "it opens its conversation"
        for parent, child in pairwise(chain):
            assert task.parent(child) is parent
            assert child.session_id == parent.session_id


def test_subagents_at_once_are_branches_of_their_own(task: Task) -> None:
    chains = [task.after(word) for word in (TASK, LEFT, RIGHT) if word in task.script]
    sessions = {chain[0].session_id for chain in chains}
    assert len(sessions) == (len(chains) if task.name in NAMELESS else 1)
    links = [link for chain in chains for link in {link for turn in chain for link in turn.prefix_hashes}]
    assert len(links) == len(set(links)), "no chain has a link of another"


def test_a_repeated_request_is_a_sibling_of_the_one_that_failed(task: Task) -> None:
    repeated = task.after(TASK)[1]
    prompt = repeated.prefix_hashes[:-1]
    assert task.lost.prefix_hashes[: len(prompt)] == prompt
    assert task.lost.session_id == repeated.session_id
    assert not task.lost.trainable
    assert task.lost not in [task.parent(turn) for turn in task.turns]


def test_a_resumed_task_goes_on_under_its_last_turn(task: Task) -> None:
    last, resumed = task.after(TASK)[-1], task.after(AGAIN)[0]
    assert task.parent(resumed) is last
    assert resumed.session_id == last.session_id


def test_a_compacted_conversation_is_a_branch_or_a_root_of_its_session(task: Task) -> None:
    session, asked = task.after(TASK)[0].session_id, task.asks[-1]
    after = task.turns[task.turns.index(asked) + 1 :]
    for parent, child in pairwise(after):
        assert task.parent(child) is parent
    opens = {"claude-code": task.after(TASK)[-1], "codex": task.after(AGAIN)[0]}
    assert task.parent(asked) is opens.get(task.name)
    assert (asked.session_id == session) is (task.name not in ASK_OUTSIDE)
    assert task.parent(after[0]) is (task.after(TASK)[0] if task.name == "hermes" else None), (
        "it keeps the first answer"
    )
    for turn in after:
        assert (turn.session_id == session) is (task.name != "pi-messages")


def last_word(turn: Turn, script: dict[str, list[dict]]) -> str:
    """The word of the script that a user said last."""
    (form,) = (form for form in FORMATS if form.name == turn.dialect)
    text = "\n".join(text for text in form.said(json.loads(turn.request)) if text)
    return max((word for word in script if word in text), key=text.rindex)


def words_of(step: dict) -> list[str]:
    """What an answer says that follows a script's step."""
    return [call["tool"] for call in step.get("calls", [step] if "tool" in step else [])] or [step["text"].strip()]
