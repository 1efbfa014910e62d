"""Feedback as callers send it, and as it stands on the log."""

import pytest

from ingest.contracts.fleet import Key, Role
from serving.gateway.errors import BadRequest
from serving.gateway.feedback import _item, feedback_of
from serving.gateway.sessions import session_hash

KEY = Key(key_id="k", name="n", digest="d", roles=(Role.FEEDBACK,), created_at=0.0)


def feedback(**body):
    return feedback_of(_item(body, 0), KEY, b"secret", 10.0)


def test_defaults_and_hashes() -> None:
    signal = feedback(target="turn", id="chatcmpl-1", kind="accept", user="anna")
    assert (signal.target_id, signal.sample, signal.source, signal.key_id) == ("chatcmpl-1", 0, "user", "k")
    assert signal.received_at == signal.occurred_at == 10.0
    assert signal.subject
    assert "anna" not in repr(signal)


def test_an_application_may_say_what_it_guessed() -> None:
    assert feedback(target="turn", id="x", kind="accept", source="implicit:copied").source == "implicit:copied"


def test_an_idempotency_key_names_the_signal_and_is_not_shown() -> None:
    first = feedback(target="turn", id="x", kind="reject", idempotency_key="anna@example")
    assert (
        first.feedback_id == feedback(target="turn", id="y", kind="accept", idempotency_key="anna@example").feedback_id
    )
    assert "anna" not in first.feedback_id
    assert (
        feedback(target="turn", id="x", kind="reject").feedback_id
        != feedback(target="turn", id="x", kind="reject").feedback_id
    )


def test_a_session_is_hashed_as_the_gateway_hashes_its_header() -> None:
    assert feedback(target="session", id="s-1", kind="outcome", value=1).target_id == session_hash(b"secret", "s-1")


def test_a_session_without_a_name_is_named_by_a_turn_of_it() -> None:
    signal = feedback(target="session_of_turn", id="chatcmpl-1", sample=2, kind="outcome", value=1)
    assert (signal.target, signal.target_id, signal.sample) == ("session_of_turn", "chatcmpl-1", 2)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"target": "turn", "id": "x"},
        {"target": "turn", "id": "x", "kind": "love"},
        {"target": "reply", "id": "x", "kind": "accept"},
        {"target": "turn", "id": "", "kind": "accept"},
        {"target": "turn", "id": "x" * 300, "kind": "accept"},
        {"target": "turn", "id": "x", "kind": "score"},
        {"target": "turn", "id": "x", "kind": "score", "value": 2},
        {"target": "turn", "id": "x", "kind": "edit"},
        {"target": "turn", "id": "x", "kind": "accept", "sample": -1},
        {"target": "turn", "id": "x", "kind": "accept", "sample": 1 << 31},
        {"target": "turn", "id": "x", "kind": "accept", "source": "nobody"},
        {"target": "turn", "id": "x", "kind": "accept", "source": "user\n"},
        {"target": "turn", "id": "x", "kind": "accept", "source": "implicit:regenerated"},
        {"target": "turn", "id": "x", "kind": "accept", "surprise": 1},
        {"target": "turn", "id": 3, "kind": "accept"},
    ],
)
def test_bad_feedback_is_refused(body: dict) -> None:
    with pytest.raises(BadRequest):
        feedback(**body)


@pytest.mark.parametrize(
    ("wrong", "known"), [({"kind": "thumbs_up"}, "accept, reject"), ({"target": "reply"}, "turn, session, session_of")]
)
def test_a_wrong_word_hears_the_right_ones(wrong: dict, known: str) -> None:
    with pytest.raises(BadRequest, match=known):
        feedback(**{"target": "turn", "id": "x", "kind": "accept"} | wrong)
