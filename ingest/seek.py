"""Finding one's way on the log, for people: its last events, those from a time on, those from a place on.

Nothing is opened that is not needed: sealed segments are found by their names, by the time of their first event, and by
when they were sealed; records of a topic by the broker's index of times (`ingest.kafka_seek`). Events have the times of
their gateways' clocks, so between spools their order is as good as those.
"""

import bisect
import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow.compute as pc

from ingest.config import LakePlace, LogSettings
from ingest.contracts.events import Record
from ingest.embedded_log import records_of
from ingest.lake import TURNS, exists, read
from ingest.log import LogError, every
from ingest.spool import SegmentUnavailable, SpoolFolder, adopt, folders
from ingest.spool.folder import STAMP_SLACK
from ingest.spool.segment import SealedSegment

UNREADABLE = "unreadable"


class Glance(msgspec.Struct, frozen=True):
    """What an event is and when it was, without the rest of it."""

    type: str = UNREADABLE
    turn_id: str | None = None
    finished_at: float | None = None
    received_at: float | None = None
    requested_at: float | None = None

    @property
    def at(self) -> float | None:
        """Unix seconds; None where it does not say."""
        return next((at for at in (self.finished_at, self.received_at, self.requested_at) if at is not None), None)


class Dated(NamedTuple):
    """A record and its time, in the order of times; one that does not say has the time of the one before it."""

    at: float
    spool_id: str
    sequence: int
    record: Record


_decoder = msgspec.msgpack.Decoder(Glance)


def glance(payload: bytes) -> Glance:
    """What can be seen of an event of any version."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return Glance()


def dated(records: Iterable[Record]) -> Iterator[Dated]:
    """Records of one spool with their times."""
    at = 0.0
    for record in records:
        said = glance(record.payload).at
        at = at if said is None else said
        yield Dated(at, record.spool_id, record.sequence, record)


def count(log: LogSettings, spool: Path) -> Counter[str]:
    """How many events of each kind are on the log."""
    return Counter(glance(record.payload).type for record in every(log, spool))


def last(log: LogSettings, spool: Path, number: int) -> list[Record]:
    """The newest events that are sealed, the newest last. Raises `LogError`, as all here do."""
    if log.kind == "kafka":
        from ingest import kafka_seek

        return kafka_seek.last(log, number)
    adopt(spool)
    newest: list[Dated] = []
    for sealed_at, folder, segment in sorted(_segments(spool), reverse=True, key=lambda one: one[0]):
        if len(newest) == number and newest[0].at > sealed_at:
            break  # nothing older can hold a newer one
        newest = sorted([*newest, *dated(_within(folder, segment))])[-number:]
    return [one.record for one in newest]


def since(log: LogSettings, spool: Path, at: float, number: int) -> list[Record]:
    """The first events at or after `at` (Unix seconds), the oldest first."""
    if log.kind == "kafka":
        from ingest import kafka_seek

        return kafka_seek.since(log, at, number)
    adopt(spool)
    found: list[Dated] = []
    for folder in folders(spool):
        sealed = folder.sealed()
        if not sealed:
            continue
        # Events are stamped shortly before they are appended, so one may stand behind a slightly later one.
        first = bisect.bisect_left(sealed, at - STAMP_SLACK, key=partial(_begins, folder))
        after = sealed[max(0, first - 1)].first - 1
        found += islice((one for one in dated(records_of(folder, after)) if one.at >= at), number)
    return [one.record for one in sorted(found)[:number]]


def place(log: LogSettings, spool: Path, spool_id: str, sequence: int, number: int) -> list[Record]:
    """The event at a place, and those of its spool after it; the first of them may be a later one."""
    if log.kind == "kafka":
        from ingest import kafka_seek

        return kafka_seek.place(log, spool_id, sequence, number)
    adopt(spool)
    for folder in folders(spool):
        if folder.spool_id == spool_id:
            found = list(islice(records_of(folder, sequence - 1), number))
            if not found:
                raise LogError(f"spool {spool_id} has no sealed event from sequence {sequence} on")
            return found
    raise LogError(f"there is no spool {spool_id} in {spool}; one that is landed goes after retention_days")


def turn(log: LogSettings, spool: Path, lake: LakePlace, turn_id: str) -> list[Record]:
    """A turn's samples. Where the lake does not know it, all of the log is looked through."""
    found: list[Record] = []
    rows = []
    if exists(lake, TURNS):
        names = ["spool_id", "sequence", "finished_at"]
        rows = read(lake, TURNS).to_table(columns=names, filter=pc.field("turn_id") == turn_id).to_pylist()
    for row in rows:
        with contextlib.suppress(LogError):
            found += _exactly(log, spool, **row)
    if not rows:
        needle = turn_id.encode()
        found = [one for one in every(log, spool) if needle in one.payload and glance(one.payload).turn_id == turn_id]
    if not found:
        where = "the log no longer has it, the lake does: `everloop trace`" if rows else "neither lake nor log has it"
        raise LogError(f"turn {turn_id}: {where}")
    return found


def _exactly(log: LogSettings, spool: Path, spool_id: str, sequence: int, finished_at: float) -> list[Record]:
    if log.kind == "kafka":
        from ingest import kafka_seek

        found = kafka_seek.place(log, spool_id, sequence, 1, finished_at)
    else:
        found = place(log, spool, spool_id, sequence, 1)
    return [record for record in found if record.sequence == sequence]


def _segments(spool: Path) -> Iterator[tuple[float, SpoolFolder, SealedSegment]]:
    """Every sealed segment, and when it was sealed."""
    for folder in folders(spool):
        for segment in folder.sealed():
            with contextlib.suppress(FileNotFoundError):  # retention, meanwhile
                yield os.stat(segment.path).st_mtime, folder, segment


def _within(folder: SpoolFolder, segment: SealedSegment) -> Iterator[Record]:
    """The records of one segment; none of one that retention removed meanwhile."""
    try:
        for sequence, payload in folder.read(segment):
            yield Record(folder.spool_id, sequence, payload)
    except SegmentUnavailable as error:
        if segment.path.exists():
            raise LogError(str(error)) from error


def _begins(folder: SpoolFolder, segment: SealedSegment) -> float:
    """The time of its first event that says one; long ago where it is gone."""
    times = (glance(record.payload).at for record in _within(folder, segment))
    return next((at for at in times if at is not None), 0.0)
