"""From the tap's record to turns."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ingest.contracts.arrays import pack_ids, pack_logprobs, unpack_ids
from ingest.contracts.fleet import Engine, Key, Role
from ingest.contracts.tap import TapCall, TapRecord, TapSample
from ingest.contracts.turn import Finish, Span, Turn
from serving.gateway.dialects import DIALECTS
from serving.gateway.dialects.base import Reply
from serving.gateway.errors import CaptureFailed
from serving.gateway.records import Caller, Ending, complete, own, turns_of, versions_of
from serving.gateway.sessions import Conversation
from serving.gateway.turns import commit

ENGINE = Engine(engine_id="e", policy="p", url="", token="")
KEY = Key(key_id="k", name="n", digest="d", roles=(Role.INFERENCE,), created_at=0.0)


def caller(samples: int = 1, prompts: int = 1) -> Caller:
    return Caller(
        turn_id="chatcmpl-1",
        policy="p",
        dialect=DIALECTS["/v1/chat/completions"],
        key=KEY,
        subject="",
        session=None,
        conversation=Conversation(b"s", "k", [{"role": "user", "content": "hi"}]),
        prompts=prompts,
        samples=samples,
        arm="champion",
        trains=True,
        recorded="{}",
        started_at=1.0,
    )


def sample(index: int, token: int, finish: str | None = "stop", **more) -> TapSample:
    fields = {"output_ids": pack_ids([token]), "logprobs": pack_logprobs([-1]), "weight_versions": (Span("v", 0, 1),)}
    return TapSample(index=index, finish=finish, **{**fields, **more})


def record(*calls: tuple[str, list[TapSample]]) -> TapRecord:
    return TapRecord(
        engine_build="b",
        calls=tuple(TapCall(request_id=name, prompt_ids=pack_ids([1]), samples=tuple(s)) for name, s in calls),
    )


def reply(finish: str = "stop") -> dict[int, Reply]:
    return {0: Reply({"role": "assistant", "content": "yes"}, finish)}


def test_samples_of_several_prompts_keep_the_callers_numbers() -> None:
    calls = [(f"cmpl-x-{i}", [sample(0, 10 * i), sample(1, 10 * i + 1)]) for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    turns = turns_of(caller(22, 11), Ending(engine=ENGINE, record=record(*calls)))
    assert [unpack_ids(t.output_ids)[0] for t in turns] == [10 * i + j for i in range(11) for j in (0, 1)]
    assert [t.sample for t in turns] == list(range(22))
    assert complete(turns)
    assert versions_of(turns) == ["v"]


@pytest.mark.parametrize(("prompts", "calls"), [(1, 2), (2, 1), (3, 2), (1, 6)])
def test_a_record_of_other_calls_than_prompts_is_not_trusted(prompts: int, calls: int) -> None:
    found = record(*((f"cmpl-x-{i}", [sample(0, i)]) for i in range(calls)))
    turns = turns_of(caller(prompts * 2, prompts), Ending(engine=ENGINE, record=found))
    assert len(turns) == prompts * 2
    assert not complete(turns)
    assert {(t.trainable, t.untrainable_reason, t.output_ids) for t in turns} == {(False, "unfinished: error", b"")}


@pytest.mark.parametrize(
    ("ending", "finish"),
    [
        ({"record": record(("chatcmpl-1", [sample(0, 1)]))}, Finish.STOP),
        ({"record": record(("chatcmpl-1", [sample(0, 1, "length")]))}, Finish.LENGTH),
        ({"record": record(("chatcmpl-1", [sample(0, 1)])), "replies": reply("tool_calls")}, Finish.TOOL_CALLS),
        ({"record": record(("chatcmpl-1", [sample(0, 1, "abort")])), "left": True}, Finish.ABORT),
        ({"record": record(("chatcmpl-1", [sample(0, 1, None)])), "left": True}, Finish.ABORT),
        ({"record": record(("chatcmpl-1", [sample(0, 1)])), "left": True}, Finish.ABORT),
        ({"record": record(("chatcmpl-1", [sample(0, 1)])), "left": True, "shown": [1]}, Finish.ABORT),
        ({"record": record(("chatcmpl-1", [sample(0, 1)])), "left": True, "shown": [0]}, Finish.STOP),
        ({"record": record(("chatcmpl-1", [sample(0, 1, "abort")])), "left": True, "shown": [0]}, Finish.ABORT),
        ({"record": record(("chatcmpl-1", [sample(0, 1)])), "status": 400}, Finish.ERROR),
        ({"record": record(("chatcmpl-1", [sample(0, 1, "error")]))}, Finish.ERROR),
        ({"record": None, "lost": True}, Finish.ENGINE_LOST),
        ({"record": None, "left": True}, Finish.ABORT),
        ({"record": None}, Finish.ERROR),
    ],
)
def test_how_a_turn_ended(ending: dict, finish: Finish) -> None:
    (turn,) = turns_of(caller(), Ending(engine=ENGINE, **ending))
    assert turn.finish is finish
    turn.check()


@pytest.mark.parametrize(
    "damage",
    [
        {"logprobs": b""},
        {"weight_versions": ()},
        {"weight_versions": (Span("v", 0, 2),)},
        {"output_ids": b"123"},
    ],
)
def test_a_damaged_record_is_stripped_and_says_so(damage: dict) -> None:
    (turn,) = turns_of(caller(), Ending(engine=ENGINE, record=record(("chatcmpl-1", [sample(0, 1, **damage)]))))
    assert not turn.trainable
    assert turn.output_ids == b""
    assert turn.untrainable_reason
    assert not complete([turn])
    turn.check()


@pytest.mark.parametrize(
    ("path", "turn_id", "names", "mine"),
    [
        ("/v1/chat/completions", "chatcmpl-1", ["chatcmpl-1"], True),
        ("/v1/chat/completions", "chatcmpl-1", ["chatcmpl-2"], False),
        ("/v1/completions", "cmpl-1", ["cmpl-1-0", "cmpl-1-1"], True),
        ("/v1/completions", "cmpl-1", ["cmpl-1-0", "cmpl-2-1"], False),
        ("/v1/messages", "msg_1", ["chatcmpl-1"], True),
        ("/v1/messages", "msg_1", ["msg_1"], False),
        ("/v1/responses", "resp_1", ["resp_1_0"], True),
        ("/v1/responses", "resp_1", ["1"], False),
    ],
)
def test_a_record_is_taken_by_the_request_that_it_names(path: str, turn_id: str, names: list[str], mine: bool) -> None:
    asking = msgspec.structs.replace(caller(), dialect=DIALECTS[path], turn_id=turn_id)
    given = record(*((name, []) for name in names))
    assert own(given, asking) is (given if mine else None)
    assert own(None, asking) is None


def test_an_answer_that_could_not_be_read_is_not_trained_on() -> None:
    tapped = record(("chatcmpl-1", [sample(0, 1), sample(1, 2)]))
    read, unread = turns_of(caller(2), Ending(engine=ENGINE, record=tapped, replies=reply()))
    assert (read.trainable, read.untrainable_reason) == (True, None)
    assert (unread.trainable, unread.untrainable_reason, unread.answer) == (False, "unreadable answer", "")
    assert unread.output_ids
    (opted_out,) = turns_of(msgspec.structs.replace(caller(), trains=False), Ending(engine=ENGINE, record=tapped))
    assert opted_out.untrainable_reason == "opted out"


CALLED = {"type": "function", "id": "1", "function": {"name": "f", "arguments": ""}}


@pytest.mark.parametrize("finish", ["stop", "length", "abort", None])
@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "assistant", "content": "yes"}, True),
        ({"role": "assistant", "content": None, "reasoning": "hm"}, True),
        ({"role": "assistant", "content": None, "tool_calls": [CALLED]}, True),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, True),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, True),
        (
            {"role": "assistant", "output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]},
            True,
        ),
        ({"role": "assistant", "output": [{"type": "function_call", "name": "f", "arguments": ""}]}, True),
        (None, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": [{"type": "text", "text": ""}]}, False),
        (
            {"role": "assistant", "output": [{"type": "message", "content": [{"type": "output_text", "text": ""}]}]},
            False,
        ),
    ],
)
def test_what_is_said_without_tokens_is_not_complete(message: dict | None, says: bool, finish: str | None) -> None:
    path = "/v1/responses" if message and "output" in message else "/v1/chat/completions"
    bare = sample(0, 1, finish, output_ids=b"", logprobs=b"", weight_versions=())
    replies = {0: Reply(message, "stop")} if message is not None else {}
    given = Ending(engine=ENGINE, record=record(("chatcmpl-1", [bare])), replies=replies)
    turns = turns_of(msgspec.structs.replace(caller(), dialect=DIALECTS[path]), given)
    assert complete(turns) is not (says and finish in ("stop", "length"))
    assert not turns[0].trainable


@pytest.mark.parametrize("kept", ["chatcmpl-1", "chatcmpl-3", None])
async def test_instead_of_anothers_record_the_engines_store_is_asked(kept: str | None) -> None:
    """`kept`: whose record the store gives. Without the turn's own the answer does not go out."""
    turns: list[Turn] = []

    async def fetch(engine: Engine, request_id: str) -> TapRecord | None:
        assert request_id == "1"
        return record((kept, [sample(0, 7)])) if kept else None

    async def commit_turns(policy: object, given: list[Turn]) -> bool:
        turns.extend(given)
        return False

    metrics = SimpleNamespace(lost=lambda turns, why: None)
    gateway: Any = SimpleNamespace(engines=SimpleNamespace(record=fetch), commit=commit_turns, metrics=metrics)
    policy = SimpleNamespace(capture="required")
    turn: Any = SimpleNamespace(caller=caller(), engine=ENGINE, request_id="1", left=False, version=None, policy=policy)
    ending = Ending(engine=ENGINE, record=record(("chatcmpl-2", [sample(0, 1)])), replies=reply())
    with nullcontext() if kept == "chatcmpl-1" else pytest.raises(CaptureFailed):
        await commit(gateway, turn, ending)
    assert [unpack_ids(turn.output_ids).tolist() for turn in turns] == [[7] if kept == "chatcmpl-1" else []]
