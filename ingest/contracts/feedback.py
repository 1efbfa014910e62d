"""Feedback: what somebody said, or did, about a turn or a session."""

import math
from enum import StrEnum

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.versions import version


class Kind(StrEnum):
    """What the signal is. Which number it becomes is the reward specification's business."""

    ACCEPT = "accept"
    REJECT = "reject"
    SCORE = "score"
    """`value` in [-1, 1]."""
    EDIT = "edit"
    """`text` is what the user kept of the answer."""
    COMMENT = "comment"
    """`text` only; carries no reward."""
    OUTCOME = "outcome"
    """`value` in [-1, 1]: how the task ended, often much later, mostly for a session."""
    ABSTAIN = "abstain"
    """The model chose not to act, and the application showed nothing."""


class ImplicitRule(StrEnum):
    """Signals that everloop computes from the traffic itself; `ingest.implicit` says when each holds.

    They are never sent and never on the log: their source, `implicit:<rule>`, is refused from callers.
    """

    REGENERATED = "regenerated"
    ABANDONED = "abandoned"
    DISSATISFIED = "dissatisfied"
    INVALID_TOOL_CALL = "invalid_tool_call"
    TOOL_ERROR = "tool_error"


class Feedback(msgspec.Struct, frozen=True, kw_only=True, tag="feedback", omit_defaults=True):
    """One signal, append-only and idempotent by `(key_id, feedback_id)`: the first received counts.

    It may come before its turn; a later one of the same kind, source and target revises an earlier one.
    Whether `key_id` may speak for the target is decided in the join. Times are Unix seconds.
    """

    schema: int = version(1)
    feedback_id: str
    target: str
    """`turn`, `session`, or `session_of_turn`: the session that a turn is part of, for sessions that nobody named."""
    target_id: str
    """The turn's id; for `session` the hash of its name."""
    sample: int = 0
    """Which one of the turn's samples is meant."""
    kind: Kind
    value: float | None = None
    text: str | None = None
    source: str = "user"
    """`user`, `application`, `simulator`, or `implicit:<rule>` where an application watched and guessed."""
    key_id: str
    subject: str = ""
    occurred_at: float
    received_at: float

    def check(self) -> None:
        """Raises `ContractError` with what is missing or out of range."""
        if self.target not in ("turn", "session", "session_of_turn"):
            raise ContractError(f'target must be "turn", "session" or "session_of_turn", not "{self.target}"')
        if self.kind in (Kind.SCORE, Kind.OUTCOME) and (self.value is None or not -1 <= self.value <= 1):
            raise ContractError(f"{self.kind} needs a value between -1 and 1")
        if self.kind in (Kind.EDIT, Kind.COMMENT) and self.text is None:
            raise ContractError(f"{self.kind} needs a text")
        if not (math.isfinite(self.occurred_at) and math.isfinite(self.received_at)):
            raise ContractError(f"occurred at {self.occurred_at}, received at {self.received_at}: these are no times")
