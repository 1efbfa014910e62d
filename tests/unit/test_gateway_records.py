"""From the tap's record to turns."""

import pytest

from ingest.contracts.arrays import pack_ids, pack_logprobs, unpack_ids
from ingest.contracts.fleet import Engine, Key, Role
from ingest.contracts.tap import TapCall, TapRecord, TapSample
from ingest.contracts.turn import Finish, Span
from serving.gateway.dialects import DIALECTS
from serving.gateway.dialects.base import Reply
from serving.gateway.records import Caller, Ending, complete, turns_of, versions_of
from serving.gateway.sessions import Conversation

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
        ({"record": record(("r", [sample(0, 1)]))}, Finish.STOP),
        ({"record": record(("r", [sample(0, 1, "length")]))}, Finish.LENGTH),
        ({"record": record(("r", [sample(0, 1)])), "replies": reply("tool_calls")}, Finish.TOOL_CALLS),
        ({"record": record(("r", [sample(0, 1, "abort")])), "left": True}, Finish.ABORT),
        ({"record": record(("r", [sample(0, 1, None)])), "left": True}, Finish.ABORT),
        ({"record": record(("r", [sample(0, 1)])), "left": True}, Finish.ABORT),
        ({"record": record(("r", [sample(0, 1)])), "left": True, "shown": [1]}, Finish.ABORT),
        ({"record": record(("r", [sample(0, 1)])), "left": True, "shown": [0]}, Finish.STOP),
        ({"record": record(("r", [sample(0, 1, "abort")])), "left": True, "shown": [0]}, Finish.ABORT),
        ({"record": record(("r", [sample(0, 1)])), "status": 400}, Finish.ERROR),
        ({"record": record(("r", [sample(0, 1, "error")]))}, Finish.ERROR),
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
    (turn,) = turns_of(caller(), Ending(engine=ENGINE, record=record(("r", [sample(0, 1, **damage)]))))
    assert not turn.trainable
    assert turn.output_ids == b""
    assert turn.untrainable_reason
    assert not complete([turn])
    turn.check()
