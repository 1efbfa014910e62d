"""Land: from the log to the lake, each event exactly once.

A batch is sorted into rows by table and appended, one commit a table, with the last sequence of each spool in the same
commit. Before each commit, rows at or below the table's own number for their spool are dropped; the
commit goes through the very snapshot that was asked, so that if another lander came between, it is refused: reload and
decide again. `turns` comes last: where a lander died in mid-batch, the next reads from what `turns` says and finds in
each other table what is there already.

What does not decode or keep its contract goes to `rejects` with its place and the reason. What belongs to an erased
subject or session does not land, ever again.
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from ingest.config import LogSettings
from ingest.contracts.erasure import Erasure
from ingest.embedded_log import retain
from ingest.lake import ERASURES, FEEDBACK, REJECTS, TURNS, landed, open_table, read
from ingest.log import open_log
from ingest.rows import Erased, Row, sort, to_arrow
from ingest.spool import folders

logger = logging.getLogger(__name__)

PROGRESS = "kafka-progress.json"

_ORDER = (ERASURES, FEEDBACK, REJECTS, TURNS)
_ATTEMPTS = 20
_COMPACT_ABOVE = 128
"""Files of a table: each batch adds one, and readers open them all."""


class LandError(Exception):
    """The lake did not take a batch: says which table and what to do. Calling again is safe."""


class LandReport(msgspec.Struct, frozen=True):
    """What one call landed: rows by table, events dropped because they were erased, and how complete the lake is."""

    rows: dict[str, int]
    erased: int
    watermark: float
    """Unix seconds: every event received up to then is in the lake. 0 where it is not known."""
    lake_versions: dict[str, int]
    """Delta version of each table, at least: what is read later may be newer, never older."""


def land(*, log: LogSettings, spool: Path, lake: Path) -> LandReport:
    """Brings the lake up to the log; the embedded log then lets go of what is old and landed.

    Idempotent; may be killed anywhere and run twice at once. Raises `LogError` where the log cannot be read,
    `LandError` where the lake cannot be written.
    """
    tables = {name: open_table(lake, name) for name in _ORDER}
    erased = _erased(lake)
    rows = dict.fromkeys(_ORDER, 0)
    dropped = 0
    reader = open_log(log, spool, lake / PROGRESS)
    for batch in reader.batches(lambda spool_id: tables[TURNS].transaction_version(spool_id) or 0):
        upto = {record.spool_id: record.sequence for record in batch}  # a spool's records come in order
        sorted_rows, covered = sort(batch, erased)
        dropped += covered
        for name in _ORDER:
            rows[name] += append(tables[name], name, sorted_rows[name], upto, now=time.time())
    for table in tables.values():
        _compact(table)
    if log.kind == "embedded":  # with Kafka the forwarder removes what the broker has
        done = landed(lake, [folder.spool_id for folder in folders(spool)])
        retain(spool, done, older_than=time.time() - log.retention_days * 86400)
    return LandReport(rows, dropped, reader.watermark(), {name: table.version() for name, table in tables.items()})


def append(table: DeltaTable, name: str, rows: list[Row], upto: Mapping[str, int], now: float) -> int:
    """Commits those rows that the table does not have, and that it has all up to `upto`; returns how many they were.

    Raises `LandError` when other writers win every time.
    """
    for _ in range(_ATTEMPTS):
        have = {spool_id: table.transaction_version(spool_id) or 0 for spool_id in upto}
        fresh = [row for row in rows if row[0].sequence > have[row[0].spool_id]]
        ahead = [Transaction(spool_id, last) for spool_id, last in upto.items() if last > have[spool_id]]
        if not ahead or (not fresh and name != TURNS):
            return 0
        try:
            write_deltalake(
                table,
                to_arrow(name, fresh, now),
                mode="append",
                commit_properties=CommitProperties(app_transactions=ahead),
            )
        except CommitFailedError:
            table.update_incremental()
        else:
            return len(fresh)
    raise LandError(f"table {name}: {_ATTEMPTS} commits in a row were refused, other writers came first; land again")


def _erased(lake: Path) -> Erased:
    columns = ["erasure_id", "target", "digest", "requested_at"]
    return Erased(Erasure(**row) for row in read(lake, ERASURES).to_table(columns=columns).to_pylist())


def _compact(table: DeltaTable) -> None:
    if len(table.file_uris()) > _COMPACT_ABOVE:
        try:
            table.optimize.compact()
        except CommitFailedError:
            logger.info("compaction left to the next landing: another writer came first")
