"""Small valid events for tests of the log and the lake."""

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.erasure import Erasure, erasure_digest
from ingest.contracts.feedback import Feedback, Kind
from ingest.contracts.turn import Finish, Span, Turn


def turn(turn_id: str, *, subject: str = "subject", session: str = "session", tokens: int = 4, **fields) -> Turn:
    """A trainable turn of `tokens` output tokens in one span."""
    values = {
        "turn_id": turn_id,
        "policy": "policy",
        "dialect": "chat",
        "key_id": "key",
        "subject": subject,
        "session_id": session,
        "prefix_hashes": ("a", "b"),
        "prompt_ids": pack_ids([1, 2, 3]),
        "output_ids": pack_ids(range(tokens)),
        "logprobs": pack_logprobs([-0.5] * tokens),
        "weight_versions": (Span("base", 0, tokens),) if tokens else (),
        "sampling": {"temperature": 1.0},
        "finish": Finish.STOP,
        "engine_id": "engine",
        "started_at": 1.0,
        "finished_at": 2.0,
        "request": "{}",
        "answer": "{}",
        "trainable": True,
    }
    return Turn(**(values | fields))


def accept(feedback_id: str, turn_id: str, subject: str = "subject") -> Feedback:
    """A user's accept of a turn."""
    return Feedback(
        feedback_id=feedback_id,
        target="turn",
        target_id=turn_id,
        kind=Kind.ACCEPT,
        key_id="key",
        subject=subject,
        occurred_at=3.0,
        received_at=3.0,
    )


def forget(subject: str) -> Erasure:
    """An erasure of a subject."""
    return Erasure(
        erasure_id=f"erase-{subject}", target="subject", digest=erasure_digest("subject", subject), requested_at=4.0
    )
