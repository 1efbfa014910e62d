"""Appends to the lake that are decided by the very snapshot that they go through.

Delta refuses a commit when, since its snapshot, another one had an application id in common, changed the table's
metadata, or deleted. Whoever appends therefore asks its questions of the snapshot, commits through it, and where it was
refused asks again.

**The fence.** An append that knows nothing yet of an erasure must not land. An erasure is committed to `erasures`, then
each table gets a commit of metadata (`fence`), then rows are deleted. An append looks at `erasures` after it took its
snapshot: either it sees the erasure, or its snapshot is older than the fence and it is refused.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ingest.config import LakePlace
from ingest.contracts.erasure import Erasure
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, SPOOL_LIFE_DAYS, TURNS, dataset, files, open_table
from ingest.rows import Erased

T = TypeVar("T")

FENCED = (FEEDBACK, REJECTS, TURNS)
"""Tables that hold what people wrote."""
ATTEMPTS = 20

_PAGE_BYTES, _PAGE_ROWS = 8 << 20, 64
"""Turns of a session repeat their prompts, and stand beside each other in a batch: where they share a page, and zstd's
window (512 kB at level 1, 2 MB at level 3), a repetition is a few bytes. A page has at least so many rows."""
WRITER = WriterProperties(
    compression="ZSTD",
    compression_level=1,
    data_page_size_limit=_PAGE_BYTES,
    write_batch_size=_PAGE_ROWS,
    # A tenth of the time: most values of a turn are its own. Upkeep's files have dictionaries again.
    default_column_properties=ColumnProperties(dictionary_enabled=False),
)
REWRITER = WriterProperties(
    compression="ZSTD",
    compression_level=3,
    data_page_size_limit=_PAGE_BYTES,
    write_batch_size=_PAGE_ROWS,
    default_column_properties=ColumnProperties(statistics_enabled="NONE"),
)
"""How a delete or an update must write: delta-rs has texts as `string_view` then, with whose statistics pyarrow cannot
compare a text, so that every filter on the table would fail."""
_FENCE = "everloop.fencedAt"
_IDS_KEPT = "delta.setTransactionRetentionDuration"


class LandError(Exception):
    """The lake did not take a batch: says which table and what to do. Calling again is safe."""


class Moved(Exception):
    """The erasures are no longer those that rows were chosen by: choose again."""


class Table:
    """A table of the lake as a writer sees it: a snapshot, and newer ones on request."""

    def __init__(self, lake: LakePlace, name: str) -> None:
        self.name = name
        self._lake = lake
        self.snapshot = open_table(lake, name)

    def renew(self) -> DeltaTable:
        """The newest version."""
        try:
            self.snapshot.update_incremental()
        except DeltaError:  # an erasure cleared the log that the snapshot needs
            self.snapshot = open_table(self._lake, self.name)
        return self.snapshot

    def decide(self, question: Callable[[DeltaTable], T]) -> T:
        """What `question` says of the snapshot, once it has committed through it what it had to.

        Refused, it is asked again of the newest one. Raises `LandError` when other writers win every time.
        """
        refused: DeltaError | None = None
        for _ in range(ATTEMPTS):
            try:
                return question(self.snapshot)
            except DeltaError as error:
                refused = error
            with contextlib.suppress(DeltaError):
                self.snapshot = open_table(self._lake, self.name)
        raise LandError(f"table {self.name}: {ATTEMPTS} commits in a row were refused ({refused}); land again")

    def landed(self, spool_id: str) -> int:
        """The last sequence of the spool, in the newest version."""
        self.renew()
        return self.decide(lambda snapshot: snapshot.transaction_version(spool_id) or 0)


class Erasures:
    """The erasures as the lake has them now, read anew only when their table has moved."""

    def __init__(self, lake: LakePlace) -> None:
        self.table = Table(lake, ERASURES)
        self.version = -1
        """Of their table, when they were read."""
        self._rows: list[Erasure] = []

    def read(self) -> Erased:
        """A copy, which the caller may add to."""
        self.renew()
        return Erased(self._rows)

    def renew(self) -> int:
        """Reads them anew where they have moved; the version of their table."""
        self.table.renew()
        self.table.decide(self._read)
        return self.version

    def check(self) -> None:
        """Raises `Moved` unless they are still those of the last look. Ask after the snapshot was taken."""
        if self.table.renew().version() != self.version:
            raise Moved

    def unknown(self, rows: pa.Table) -> pa.Array:
        """Which rows of `erasures` have a digest that the table did not have when it was read."""
        known = {erasure.digest for erasure in self._rows}
        return pa.array([digest not in known for digest in rows["digest"].to_pylist()], pa.bool_())

    def _read(self, snapshot: DeltaTable) -> None:
        if snapshot.version() != self.version:
            columns = ["erasure_id", "target", "digest", "requested_at"]
            found = dataset(snapshot).to_table(columns=columns).to_pylist()
            self._rows, self.version = [Erasure(**row) for row in found], snapshot.version()


def commit(snapshot: DeltaTable, rows: pa.Table, transactions: Mapping[str, int], now: float) -> None:
    """Appends through the snapshot. Raises `DeltaError` where it was refused.

    `transactions`: application id → its new version. `now`: Unix seconds, from which their expiry counts.
    """
    told = [Transaction(name, version, int(now * 1000)) for name, version in transactions.items()]
    properties = CommitProperties(app_transactions=told)
    write_deltalake(snapshot, rows, mode="append", writer_properties=WRITER, commit_properties=properties)
    if snapshot.version() < _checkpoint(snapshot):
        # The log was cleared while this process slept between its look and its commit: readers never see that one.
        raise CommitFailedError("an erasure cleared the log meanwhile")


def fence(lake: LakePlace, names: Iterable[str] = FENCED) -> None:
    """Every append to these tables that began before now is refused, and then sees the erasures as they stand."""
    for name in names:
        set_property(Table(lake, name), _FENCE, f"{time.time():.6f}")


def set_property(table: Table, name: str, value: str) -> None:
    """A commit of metadata."""
    table.decide(lambda snapshot: snapshot.alter.set_table_properties({name: value}, raise_if_not_exists=False))


def outlive(lake: LakePlace, retention_days: float) -> None:
    """Spools' numbers are remembered for longer than the log can give their events, and longer than a machine that
    forwards them is switched off: an id that is forgotten too early lands again."""
    kept = math.ceil(retention_days) + SPOOL_LIFE_DAYS
    for name in (ERASURES, *FENCED):
        table = Table(lake, name)
        if int(table.snapshot.metadata().configuration.get(_IDS_KEPT, "interval 0 days").split()[1]) < kept:
            set_property(table, _IDS_KEPT, f"interval {kept} days")


def refresh(lake: LakePlace, spool_ids: Iterable[str], now: float) -> None:
    """The numbers of these spools are remembered as long as if they had landed something at `now`."""

    def again(snapshot: DeltaTable) -> None:
        have = {spool_id: snapshot.transaction_version(spool_id) or 0 for spool_id in spool_ids}
        if have := {spool_id: last for spool_id, last in have.items() if last}:
            commit(snapshot, SCHEMAS[TURNS].empty_table(), have, now)

    Table(lake, TURNS).decide(again)


def written_at(snapshot: DeltaTable) -> float:
    """When its version was committed (Unix seconds), by the clock of the lake's store; 0 where the log forgot it."""
    [entry] = files(snapshot).get_file_info([f"_delta_log/{snapshot.version():020}.json"])
    return entry.mtime_ns / 1e9 if entry.is_file else 0.0


def _checkpoint(snapshot: DeltaTable) -> int:
    """The version of the newest checkpoint; 0 where there is none."""
    try:
        with files(snapshot).open_input_stream("_delta_log/_last_checkpoint") as told:
            return json.loads(told.read())["version"]
    except FileNotFoundError:
        return 0
