"""Erasure: somebody, or something, to forget, everywhere and forever.

An erasure must recognise what it covers for as long as the log lives, and must not itself remember whom it was about:
it keeps a digest of the pseudonym. A pseudonym is a keyed hash of 128 bits and a turn's id 128 random bits, so a digest
leads back to neither (decision 16).
"""

import hashlib

import msgspec

from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.contracts.versions import version

TARGETS = ("subject", "session", "turn")


class Erasure(msgspec.Struct, frozen=True, kw_only=True, tag="erasure", omit_defaults=True):
    """One target of the request `erasure_id`, by its digest. `requested_at` is in Unix seconds.

    A request names a subject or a session; the turns that it covered, and sessions that were the subject's alone, are
    targets of it as well, so that what others say of them later is covered too.
    """

    schema: int = version(1)
    erasure_id: str
    target: str
    """One of `TARGETS`."""
    digest: str
    """`erasure_digest` of the target's id."""
    requested_at: float


def erasure_digest(target: str, target_id: str) -> str:
    """SHA-256, in hex, of a target and its id: what erasures are compared by. SQL: `sha256(target || ':' || id)`."""
    return hashlib.sha256(f"{target}:{target_id}".encode()).hexdigest()


def erasable(event: Turn | Feedback) -> tuple[tuple[str, str], ...]:
    """(target, id) of each target whose erasure covers the event."""
    found = [("subject", event.subject)]
    if isinstance(event, Turn):
        found += [("session", event.session_id), ("turn", event.turn_id)]
    else:
        found.append(("session" if event.target == "session" else "turn", event.target_id))
    return tuple(pair for pair in found if pair[1])
