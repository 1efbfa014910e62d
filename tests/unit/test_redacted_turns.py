"""What becomes of a turn, and of feedback, in which redaction finds something, or which it cannot read."""

import asyncio
import json
import sys
import threading
import types

import pytest

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.feedback import Feedback, Kind
from ingest.contracts.fleet import Policy, Redaction, Version
from ingest.contracts.turn import Finish, Span, Turn
from serving.gateway.errors import CaptureFailed
from serving.gateway.redaction import Redactions, redacted
from serving.redaction import Redactor

EMAIL = Redactor(Redaction(patterns=("email",)))


def turn(request: dict | None = None, answer: str = "fine", **more: object) -> Turn:
    request = {"messages": [{"role": "user", "content": "hello"}]} if request is None else request
    fields: dict = {
        **{"turn_id": "chatcmpl-1", "policy": "p", "dialect": "chat", "key_id": "k", "subject": "", "session_id": "s"},
        **{"prompt_ids": pack_ids([1, 2]), "output_ids": pack_ids([3]), "logprobs": pack_logprobs([-0.5])},
        **{"weight_versions": (Span("v", 0, 1),), "finish": Finish.STOP, "engine_id": "e"},
        **{"started_at": 1.0, "finished_at": 2.0, "trainable": True, "request": json.dumps(request)},
        "answer": json.dumps({"role": "assistant", "content": answer}) if answer else "",
    }
    return Turn(**{**fields, **more})


def policy(**redaction: object) -> Policy:
    return Policy(name="p", desired=Version("v", "/v"), redaction=Redaction(**redaction))


def test_a_turn_without_a_find_is_recorded_as_it_is() -> None:
    clean = turn()
    assert redacted(clean, EMAIL, {}) is clean


@pytest.mark.parametrize(
    "found",
    [
        turn({"messages": [{"role": "user", "content": "I am a@b.cc"}]}),
        turn(answer="mail a@b.cc"),
        turn({"prompt": "x", "metadata": {"mail": "a@b.cc"}}),
        turn(answer=json.dumps({"content": "\na@b.cc"})),
        turn({"messages": [{"role": "user", "content": [{"text": "a@"}, {"text": "b.cc"}]}]}),
    ],
)
def test_a_turn_with_a_find_loses_what_decodes_to_it(found: Turn) -> None:
    kept = redacted(found, EMAIL, {})
    assert "a@b.cc" not in repr(kept)
    assert "[REDACTED:email]" in kept.request + kept.answer
    assert (kept.prompt_ids, kept.output_ids, kept.logprobs, kept.weight_versions) == (b"", b"", b"", ())
    assert (kept.trainable, kept.untrainable_reason) == (False, "redacted")
    kept.check()


@pytest.mark.parametrize(
    "unread",
    [
        turn(answer=""),
        turn(finish=Finish.ABORT),
        turn({"prompt": [1, 2, 3]}),
        turn({"prompt": [[1, 2], [3]]}),
        turn({"messages": [], "include_reasoning": False}),
    ],
)
def test_ids_that_no_text_shows_are_not_kept(unread: Turn) -> None:
    kept = redacted(unread, EMAIL, {})
    assert (kept.prompt_ids, kept.output_ids, kept.untrainable_reason) == (b"", b"", "redacted")
    assert "[1" not in kept.request


def test_who_opted_out_stays_so() -> None:
    found = turn(answer="a@b.cc", trainable=False, untrainable_reason="opted out")
    assert redacted(found, EMAIL, {}).untrainable_reason == "opted out"


async def test_samples_of_one_call_are_redacted_each_and_their_request_once() -> None:
    redactions = Redactions(30.0)
    asked = {"messages": [{"role": "user", "content": "a@b.cc"}]}
    first, second = await redactions.turns(policy(patterns=("email",)), [turn(asked), turn(asked, "c@d.ee", sample=1)])
    assert first.request is second.request
    assert "[REDACTED:email]" in second.answer
    redactions.close()


@pytest.mark.parametrize("broken", ["raises", "none", "missing", "hangs"])
async def test_what_cannot_be_redacted_is_recorded_without_any_text(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    def raises(text: str) -> str:
        raise ValueError(f"could not read {text}")

    module = types.ModuleType("own_redaction")
    module.raises, module.none, module.hangs = raises, lambda text: None, lambda text: release.wait(60) and text
    monkeypatch.setitem(sys.modules, "own_redaction", module)
    redactions = Redactions(0.2 if broken == "hangs" else 30.0)
    (kept,) = await redactions.turns(policy(function=f"own_redaction:{broken}"), [turn(answer="pelican")])
    assert (kept.request, kept.answer, kept.output_ids) == ("", "", b"")
    assert (kept.trainable, kept.untrainable_reason) == (False, "redaction failed")
    assert "pelican" not in caplog.text
    assert "hello" not in caplog.text
    kept.check()
    comment = signal(Kind.COMMENT, "pelican")
    with pytest.raises(CaptureFailed):
        await redactions.feedback([policy(function=f"own_redaction:{broken}")], [comment])
    release.set()
    redactions.close()


async def test_one_keys_turns_leave_a_thread_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    module = types.ModuleType("own_redaction")
    module.waits = lambda text: release.wait(60) and text if text == "pelican" else text
    monkeypatch.setitem(sys.modules, "own_redaction", module)
    redactions, own = Redactions(60.0), policy(function="own_redaction:waits")
    slow = [asyncio.create_task(redactions.turns(own, [turn(answer="pelican", key_id="one")])) for _ in range(5)]
    await asyncio.sleep(0)
    other = turn(key_id="other")
    assert await redactions.turns(own, [other]) == [other]
    assert not any(task.done() for task in slow)
    release.set()
    assert [kept.untrainable_reason for task in slow for kept in await task] == [None] * 5
    redactions.close()


def signal(kind: Kind, text: str | None) -> Feedback:
    fields: dict = {"feedback_id": "f", "target": "turn", "target_id": "t", "key_id": "k"}
    return Feedback(**fields, kind=kind, text=text, occurred_at=1.0, received_at=1.0)


async def test_feedback_goes_through_every_policys_redaction() -> None:
    redactions = Redactions(30.0)
    policies = [policy(patterns=("email",)), policy(expressions={"order": r"ORD-\d+"})]
    plain = Policy(name="q", desired=Version("v", "/v"))
    items = [signal(Kind.EDIT, "a@b.cc, ORD-12"), signal(Kind.ACCEPT, None), signal(Kind.COMMENT, "good")]
    edit, accept, comment = await redactions.feedback([*policies, plain], items)
    assert edit.text == "[REDACTED:email], [REDACTED:order]"
    assert accept is items[1]
    assert comment is items[2]
    assert await redactions.feedback([plain], items) == items
    redactions.close()
