"""Records that the broker refused for themselves: kept beside the spools, counted, and sent again by hand.

`<root>/.refused/<spool id>-<sequence>` holds the event's bytes and the reason. In its place on the topic stands a
`Lost` event that says so, so nobody waits for it. `send_again` gives each a closed spool of its own: the sequence that
it had has passed.
"""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ingest.contracts.files import sync, write_atomically
from ingest.spool import SpoolFolder
from ingest.spool.damage import UNFINISHED
from ingest.spool.segment import ActiveSegment

_FOLDER = ".refused"
_DEAD_SECONDS = 60.0
"""How old an unfinished file must be to be what a crash left."""


class Refused(msgspec.Struct, frozen=True):
    """One event that the broker did not take. `at` is in Unix seconds."""

    spool_id: str
    sequence: int
    reason: str
    at: float
    payload: bytes


def set_aside(root: Path, refused: Refused) -> Path:
    """Its file; durable on return."""
    path = root / _FOLDER / f"{refused.spool_id}-{refused.sequence:016d}"
    path.parent.mkdir(exist_ok=True, mode=0o700)
    write_atomically(path, msgspec.msgpack.encode(refused), mode=0o600)
    return path


def refused_files(root: Path) -> list[Path]:
    """The file of each such event below `root`."""
    return sorted(path for path in (root / _FOLDER).glob("*") if not path.name.startswith("."))


def send_again(root: Path) -> int:
    """Puts each into a spool that the forwarder then ships; returns how many they were. Killed and run again: once."""
    found = refused_files(root)
    for path in found:
        refused = msgspec.msgpack.decode(path.read_bytes(), type=Refused)
        # The name follows from what it is: after a crash it is the same spool, and landing knows it.
        spool_id = hashlib.sha256(f"{refused.spool_id}/{refused.sequence}".encode()).hexdigest()[:32]
        if not (root / spool_id).exists():
            _spool_of_one(root, spool_id, refused.payload)
        path.unlink()
        sync(path.parent)
    return len(found)


def forget_refused(root: Path, covered: Callable[[bytes], bool]) -> int:
    """Removes those whose event is `covered` by an erasure; how many they were."""
    found = 0
    for path in refused_files(root):
        if covered(msgspec.msgpack.decode(path.read_bytes(), type=Refused).payload):
            path.unlink()
            found += 1
    for path in (root / _FOLDER).glob(".*.partial"):
        if path.stat().st_mtime < time.time() - _DEAD_SECONDS:
            path.unlink()  # of a forwarder that was killed: the event is in its spool still
    return found


def _spool_of_one(root: Path, spool_id: str, payload: bytes) -> None:
    hidden = root / f"{UNFINISHED}{spool_id}-{os.getpid()}"
    hidden.mkdir(mode=0o700)
    active = ActiveSegment(hidden / "active.db")
    active.write(1, [payload])
    active.seal()
    SpoolFolder(hidden).mark_closed()
    os.rename(hidden, root / spool_id)
    sync(root)
