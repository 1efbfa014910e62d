"""Turn: one sample of one model call, exactly as the engine saw it."""

import math
from enum import StrEnum

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.versions import version


class Finish(StrEnum):
    """Why the sample ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    """The caller hung up, or the operator cut it: the tokens up to there are recorded."""
    ERROR = "error"
    """The engine answered with an error, or with more than the gateway takes."""
    ENGINE_LOST = "engine_lost"
    """The engine went away in mid-answer: what was generated is unknown."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Output tokens `start` up to `end` (exclusive) were sampled from weights `version`."""

    version: str
    start: int
    end: int


class Turn(msgspec.Struct, frozen=True, kw_only=True, tag="turn", omit_defaults=True):
    """One sample of one model call, keyed by `(turn_id, sample)`.

    Arrays are packed as in `ingest.contracts.arrays`. Times are Unix seconds. `subject`, `session_id` and
    `prefix_hashes` are keyed hashes. `request` and `answer` are the caller's JSON, normalised to compact
    UTF-8. Where a redaction found something they say `[REDACTED:…]`, where it failed they are empty; the arrays are
    empty in both cases.
    """

    schema: int = version(1)
    turn_id: str
    sample: int = 0
    policy: str
    dialect: str
    key_id: str
    subject: str
    session_id: str
    prefix_hashes: tuple[str, ...] = ()

    prompt_ids: bytes = b""
    output_ids: bytes = b""
    logprobs: bytes = b""
    weight_versions: tuple[Span, ...] = ()
    sampling: dict[str, float | int | bool | str | None] = {}
    finish: Finish

    engine_id: str
    engine_build: str = ""
    arm: str = "champion"
    experiment: str | None = None

    started_at: float
    first_token_at: float | None = None
    finished_at: float

    request: str = ""
    answer: str = ""

    trainable: bool
    untrainable_reason: str | None = None

    def check(self) -> None:
        """Raises `ContractError` unless it has its times, ids and logprobs match, and the spans tile the output."""
        if not (math.isfinite(self.started_at) and math.isfinite(self.finished_at)):
            raise ContractError(f"turn {self.turn_id}: from {self.started_at} to {self.finished_at} are no times")
        n = len(self.output_ids) // 4
        if len(self.output_ids) % 4 or len(self.prompt_ids) % 4 or len(self.logprobs) != len(self.output_ids):
            raise ContractError(
                f"turn {self.turn_id}: {len(self.output_ids)} bytes of ids, {len(self.logprobs)} of logprobs"
            )
        at = 0
        for span in self.weight_versions:
            if span.start != at or span.end <= span.start:
                raise ContractError(f"turn {self.turn_id}: version spans do not tile its {n} output tokens")
            at = span.end
        if at != n:
            raise ContractError(f"turn {self.turn_id}: version spans cover {at} of {n} output tokens")
        if self.trainable == bool(self.untrainable_reason):
            raise ContractError(f"turn {self.turn_id}: not trainable needs a reason, trainable has none")
