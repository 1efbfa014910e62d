"""Appends to the lake that are decided by the very snapshot that they go through.

Delta refuses a commit when, since its snapshot, another one had an application id in common, changed the table's
metadata, or deleted. Whoever appends therefore asks its questions of the snapshot, commits through it, and where it was
refused asks again.

**The fence.** An append that knows nothing yet of an erasure must not land. An erasure is committed to `erasures`, then
each table gets a commit of metadata (`fence`), then rows are deleted. An append looks at `erasures` after it took its
snapshot: either it sees the erasure, or its snapshot is older than the fence and it is refused.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from ingest.contracts.erasure import Erasure
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, SPOOL_LIFE_DAYS, TURNS, open_table
from ingest.rows import Erased

FENCED = (FEEDBACK, REJECTS, TURNS)
"""Tables that hold what people wrote."""
ATTEMPTS = 20

_WRITER = WriterProperties(compression="ZSTD", compression_level=1)
_FENCE = "everloop.fencedAt"
_IDS_KEPT = "delta.setTransactionRetentionDuration"


class LandError(Exception):
    """The lake did not take a batch: says which table and what to do. Calling again is safe."""


class Moved(Exception):
    """The erasures are no longer those that rows were chosen by: choose again."""


class Erasures:
    """The erasures as the lake has them now, read anew only when their table has moved."""

    def __init__(self, lake: Path) -> None:
        self.table = open_table(lake, ERASURES)
        self._version = -1
        self._rows: list[Erasure] = []

    def read(self) -> Erased:
        """A copy, which the caller may add to."""
        self.table.update_incremental()
        if self.table.version() != self._version:
            columns = ["erasure_id", "target", "digest", "requested_at"]
            found = self.table.to_pyarrow_dataset().to_table(columns=columns).to_pylist()
            self._rows, self._version = [Erasure(**row) for row in found], self.table.version()
        return Erased(self._rows)

    def check(self) -> None:
        """Raises `Moved` unless they are still those of the last `read`. Ask after the snapshot was taken."""
        self.table.update_incremental()
        if self.table.version() != self._version:
            raise Moved

    def unknown(self, rows: pa.Table) -> pa.Array:
        """Which rows of `erasures` have a digest that the table did not have when it was read."""
        known = {erasure.digest for erasure in self._rows}
        return pa.array([digest not in known for digest in rows["digest"].to_pylist()], pa.bool_())


def commit(table: DeltaTable, rows: pa.Table, transactions: Mapping[str, int], now: float) -> str | None:
    """Appends through the table's snapshot; why it was refused, and the table is then at its newest version.

    `transactions`: application id → its new version. `now`: Unix seconds, from which their expiry counts.
    """
    told = [Transaction(name, version, int(now * 1000)) for name, version in transactions.items()]
    try:
        properties = CommitProperties(app_transactions=told)
        write_deltalake(table, rows, mode="append", writer_properties=_WRITER, commit_properties=properties)
    except DeltaError as error:  # a conflict; or an erasure cleared the log that the snapshot needs
        table.update_incremental()
        return str(error)
    if table.version() < _checkpoint(table):
        # The log was cleared while this process slept between its look and its commit: readers never see that one.
        table.update_incremental()
        return "an erasure cleared the log meanwhile"
    return None


def fence(lake: Path, names: tuple[str, ...] = FENCED) -> None:
    """Every append to these tables that began before now is refused, and then sees the erasures as they stand."""
    for name in names:
        table = open_table(lake, name)
        for _ in range(ATTEMPTS):
            try:
                table.alter.set_table_properties({_FENCE: f"{time.time():.6f}"}, raise_if_not_exists=False)
                break
            except DeltaError as error:
                refused = error
                table.update_incremental()
        else:
            raise LandError(f"table {name} could not be fenced, other writers came first: {refused}")


def outlive(lake: Path, retention_days: float) -> None:
    """Spools' numbers are remembered for longer than the log can give their events, and longer than a machine that
    forwards them is switched off: an id that is forgotten too early lands again."""
    kept = math.ceil(retention_days) + SPOOL_LIFE_DAYS
    for name in (ERASURES, *FENCED):
        table = open_table(lake, name)
        for _ in range(ATTEMPTS):
            words = table.metadata().configuration.get(_IDS_KEPT, "interval 0 days").split()
            if int(words[1]) >= kept:
                break
            try:
                table.alter.set_table_properties({_IDS_KEPT: f"interval {kept} days"})
            except DeltaError:
                table.update_incremental()


def refresh(table: DeltaTable, spool_ids: Iterable[str], now: float) -> None:
    """The numbers of these spools are remembered as long as if they had landed something now."""
    for _ in range(ATTEMPTS):
        have = {spool_id: table.transaction_version(spool_id) or 0 for spool_id in spool_ids}
        have = {spool_id: last for spool_id, last in have.items() if last}
        nothing = SCHEMAS[TURNS].empty_table()
        if not have or commit(table, nothing, have, now) is None:
            return


def _checkpoint(table: DeltaTable) -> int:
    """The version of the newest checkpoint; 0 where there is none."""
    try:
        folder = Path(unquote(table.table_uri.removeprefix("file://")))
        return json.loads((folder / "_delta_log" / "_last_checkpoint").read_text())["version"]
    except FileNotFoundError:
        return 0
