"""Land: from the log to the lake, each event exactly once.

Two threads: one reads a batch and sorts it into rows by table (Python), while the other appends the batch before
(delta-rs); both have snapshots of their own. One commit a table, with the last sequence of each spool in the same
commit. Before each commit, rows at or below the table's own number for their spool are dropped; the
commit goes through the very snapshot that was asked, so that if another lander came between, it is refused: reload and
decide again (`ingest.commits`). `turns` comes last: where a lander died in mid-batch, the next reads from what `turns`
says and finds in each other table what is there already.

What does not decode or keep its contract goes to `rejects` with its place, its bytes and the reason; once the code that
reads events has changed, it is tried again (`ingest.rejects`). What belongs to an erased subject or session does not
land, ever again: where the erasures moved after a batch was sorted, it is sorted anew. Feedback that landed before its
turn goes when the turn comes and is dropped.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ingest.commits import ATTEMPTS, REWRITER, Erasures, LandError, Moved, Table, commit, fence, outlive, written_at
from ingest.config import LakePlace, LakeSettings, LogSettings
from ingest.contracts.events import Event, Record
from ingest.credentials import without_credentials
from ingest.embedded_log import retain
from ingest.lake import ERASURES, FEEDBACK, REJECTS, TURNS, dataset, landed, open_table
from ingest.log import open_log
from ingest.rejects import reland_rejects
from ingest.rows import Sorted, sort
from ingest.spool import folders
from ingest.upkeep import upkeep, upkeep_if_due

logger = logging.getLogger(__name__)

_ORDER = (ERASURES, FEEDBACK, REJECTS, TURNS)


class LandReport(msgspec.Struct, frozen=True):
    """What one call landed: rows by table, events dropped because they were erased, and how complete the lake is."""

    rows: dict[str, int]
    erased: int
    watermark: float
    """Unix seconds: every event received up to then is in the lake. 0 where it is not known."""
    lake_versions: dict[str, int]
    """Delta version of each table, at least: what is read later may be newer, never older."""
    lost: int = 0
    """Events that the log's retention removed before they were landed."""
    relanded: int = 0
    """Rejects that this version of the code could read."""


def land(
    *,
    log: LogSettings,
    spool: Path,
    lake: LakePlace,
    settings: LakeSettings = LakeSettings(),  # noqa: B008 - frozen
    datasets: Path | None = None,
) -> LandReport:
    """Brings the lake up to the log; the embedded log then lets go of what is old and landed.

    Idempotent; may be killed anywhere and run twice at once. Looks after the lake when that is due, and keeps the
    versions that manifests below `datasets` name. Raises `LogError` where the log cannot be read, `LandError` where the
    lake cannot be written.
    """
    screen = without_credentials if settings.redact_credentials else None
    lander = _Lander(lake, screen)
    outlive(lake, log.retention_days)
    relanded = reland_rejects(lake, lander.erasures, screen)
    reader = open_log(log, spool, lake)
    try:
        lander.take_all(reader.batches(lander.after))
    finally:
        if lander.deleted:  # whatever else happened: nobody else knows of it
            upkeep(lake, settings, time.time(), datasets=datasets, erase=True)
    if reader.lost:
        logger.error("%d events were removed from the log before they were landed: it keeps too little", reader.lost)
    if log.kind == "embedded":  # with Kafka the forwarder removes what the broker has
        done = landed(lake, [folder.spool_id for folder in folders(spool)])
        retain(spool, done, older_than=time.time() - log.retention_days * 86400)
    if not lander.deleted:
        upkeep_if_due(lake, settings, time.time(), datasets=datasets, living=reader.living())
    versions = {name: open_table(lake, name).version() for name in _ORDER}
    return LandReport(lander.rows, lander.erased, reader.watermark(), versions, reader.lost, relanded)


class _Chosen(NamedTuple):
    """A batch, and its rows as the erasures at `version` of their table have them."""

    batch: list[Record]
    version: int
    rows: Sorted


class _Lander:
    """The tables, and what was done to them."""

    def __init__(self, lake: LakePlace, screen: Callable[[Event], Event] | None) -> None:
        self._lake, self._screen = lake, screen
        self._seen_turns, self._seen_erasures = Table(lake, TURNS), Erasures(lake)
        """The reading thread's snapshots; all others are of whoever appends."""
        self.erasures = Erasures(lake)
        self._tables = {name: Table(lake, name) for name in _ORDER} | {ERASURES: self.erasures.table}
        self.rows = dict.fromkeys(_ORDER, 0)
        self.erased = 0
        self.deleted = 0
        """Rows that had landed and were deleted."""

    def after(self, spool_id: str) -> int:
        """The last sequence of the spool that is in the lake with everything before it."""
        return self._seen_turns.landed(spool_id)

    def take_all(self, batches: Iterator[list[Record]]) -> None:
        """Lands a log's batches (`LogReader.batches`). Raises `LandError`."""
        with ThreadPoolExecutor(1) as beside:
            under_way: Future[None] | None = None
            for batch in batches:
                chosen = self._choose(batch, self._seen_erasures) if batch else None
                if under_way is not None:
                    under_way.result()
                under_way = beside.submit(self.take, chosen) if chosen else None
            if under_way is not None:
                under_way.result()

    def _choose(self, batch: list[Record], erasures: Erasures) -> _Chosen:
        erased = erasures.read()
        return _Chosen(batch, erasures.version, sort(batch, erased, time.time(), self._screen))

    def take(self, chosen: _Chosen) -> None:
        """Lands a batch, in which a spool's records come in order. Raises `LandError`."""
        upto = {record.spool_id: record.sequence for record in chosen.batch}
        for _ in range(ATTEMPTS):
            if self.erasures.renew() != chosen.version:
                chosen = self._choose(chosen.batch, self.erasures)
            found = chosen.rows
            try:
                for name in _ORDER:
                    self.rows[name] += append(self._tables[name], found.tables[name], upto, self.erasures)
                    if name == ERASURES and found.gone:
                        self.deleted += self._forget_feedback(found.gone)
            except Moved:
                continue
            self.erased += found.covered
            return
        raise LandError("erasures came faster than one batch could be landed; land again")

    def _forget_feedback(self, turn_ids: frozenset[str]) -> int:
        """Deletes what landed about turns before they came and were dropped; returns how much that was."""
        fence(self._lake, (FEEDBACK,))
        about = pc.field("target_id").isin(sorted(turn_ids)) & (pc.field("target") != "session")
        names = ", ".join("'" + turn_id.replace("'", "''") + "'" for turn_id in sorted(turn_ids))

        def delete(snapshot: DeltaTable) -> int:
            if not dataset(snapshot).count_rows(filter=about):
                return 0
            return snapshot.delete(f"target <> 'session' AND target_id IN ({names})", REWRITER)["num_deleted_rows"]

        self._tables[FEEDBACK].renew()
        return self._tables[FEEDBACK].decide(delete)


def append(table: Table, rows: pa.Table, upto: Mapping[str, int], erasures: Erasures) -> int:
    """Commits those rows that the table does not have, and that it has all up to `upto`; returns how many they were.

    Raises `Moved` where the rows were chosen by erasures that are no longer all; `LandError` when other writers win
    every time.
    """

    def fresh(snapshot: DeltaTable) -> int:
        if table.name != ERASURES:
            erasures.check()
        have = {spool_id: snapshot.transaction_version(spool_id) or 0 for spool_id in upto}
        new = _past(rows, have)
        if table.name == ERASURES:  # a turn that is dropped only now leaves one in its place, which may be behind
            new = pc.or_(new, erasures.unknown(rows))
        ahead = {spool_id: last for spool_id, last in upto.items() if last > have[spool_id]}
        found = rows.filter(new)
        if found.num_rows or (table.name == TURNS and ahead):
            # Not by a clock that fell back, to 1970 say: the numbers would expire at once, and everything land again.
            commit(snapshot, found, ahead, max(time.time(), written_at(snapshot)))
        return found.num_rows

    return table.decide(fresh)


def _past(rows: pa.Table, have: Mapping[str, int]) -> pa.Array:
    """Which rows are past what the table has of their spools."""
    floor = [have[spool_id] for spool_id in rows["spool_id"].to_pylist()]
    return pc.greater(rows["sequence"].combine_chunks(), pa.array(floor, pa.int64()))
