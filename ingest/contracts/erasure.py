"""Erasure: a subject or a session to forget, everywhere and forever."""

import msgspec


class Erasure(msgspec.Struct, frozen=True, kw_only=True, tag="erasure", omit_defaults=True):
    """`target` is `subject` or `session`; `target_id` its keyed hash. Times are Unix seconds."""

    schema: int = 1
    erasure_id: str
    target: str
    target_id: str
    requested_at: float
