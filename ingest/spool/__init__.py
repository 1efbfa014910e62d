"""The spool: where an event is durable before anybody is told that it happened.

Each process that writes has a folder of its own, `<root>/<spool id>/`, new at each start:

    lock                     held (flock) for the process's life; free means dead
    active-<ordinal>.db      the segment being written (SQLite, WAL), and a spare that waits its turn
    <first>-<last>.db        sealed segments, immutable; deletion is unlink
    watermark                Unix seconds: what was appended up to then is in sealed segments
    closed                   nothing will ever be added: closed in order, or adopted after a crash
    partition                the partition of the topic that it goes to (forwarder)
    shipped                  the last sequence that a broker acknowledged (forwarder)
    lost                     sequences of which it has no event: damaged before, or refused (forwarder)

and beside them `<root>/.damaged/`, the account of what was damaged, and `.new-*`, what is not complete yet.

- `segment`: one SQLite file: create, write, seal, read
- `folder`: the layout above, seen from outside: list, adopt, watermarks
- `damage`: what is whole of a damaged segment goes on, what is not is named; `salvage` finds it
- `writer`: `Spool`, group commit; with `sealer`, its second thread, `room`, its bound, and `shipped`, where the
  broker's acknowledgement is waited for

Invariants: a sequence is acknowledged only after fsync, or once the broker has it (`ack`); sequences rise and are never
used twice; sealed segments appear in order and have no holes; one is only ever replaced as a whole, by one of the same
range. Only the lock's holder touches an active segment.
"""

from ingest.spool.damage import Damage, damages, let_go, rewrite
from ingest.spool.errors import (
    BrokerBehind,
    CommitTimeout,
    SegmentDamaged,
    SegmentUnavailable,
    SpoolClosed,
    SpoolError,
    SpoolFull,
)
from ingest.spool.folder import SpoolFolder, adopt, folders, low_watermark
from ingest.spool.segment import SealedSegment, read_segment
from ingest.spool.writer import Spool

__all__ = [
    "BrokerBehind",
    "CommitTimeout",
    "Damage",
    "SealedSegment",
    "SegmentDamaged",
    "SegmentUnavailable",
    "Spool",
    "SpoolClosed",
    "SpoolError",
    "SpoolFolder",
    "SpoolFull",
    "adopt",
    "damages",
    "folders",
    "let_go",
    "low_watermark",
    "read_segment",
    "rewrite",
]
