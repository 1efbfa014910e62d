"""How far a topic has landed, shared by all landers of a lake: its table `watermarks`.

A row is a fact that never becomes false: of a spool, that what it received up to `at` is in the lake, and whether
anything follows; of a partition (its `spool_id` is empty), that all that stood on it at that time is. A lander writes
its facts once the rows that make them true are in; the newest of each is what holds.
"""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from ingest.commits import Table, commit
from ingest.config import LakePlace
from ingest.lake import SCHEMAS, WATERMARKS, dataset

_FORGET_SECONDS = 30 * 86400.0
"""A closed spool's fact goes so long after it: it holds nothing back."""
_FOLD_ABOVE = 10_000


class Mark(NamedTuple):
    """What was received up to `at` (Unix seconds) has landed; `closed`: nothing follows."""

    at: float
    closed: bool


class Marks:
    """The facts of one topic, as the table has them."""

    def __init__(self, lake: LakePlace, topic: str) -> None:
        self._table = Table(lake, WATERMARKS)
        self._topic = topic

    def write(self, partitions: dict[int, Mark], spools: dict[str, Mark], now: float) -> None:
        """Raises `LandError`."""
        rows = [(partition, "", mark) for partition, mark in partitions.items()]
        rows += [(-1, spool_id, mark) for spool_id, mark in spools.items()]
        if not rows:
            return
        columns = {
            "topic": [self._topic] * len(rows),
            "partition": [partition for partition, _, _ in rows],
            "spool_id": [name for _, name, _ in rows],
            "at": [mark.at for _, _, mark in rows],
            "closed": [mark.closed for _, _, mark in rows],
            "landed_at": [now] * len(rows),
        }
        found = pa.table(columns, schema=SCHEMAS[WATERMARKS])
        self._table.decide(lambda snapshot: commit(snapshot, found, {}, now))

    def read(self) -> tuple[dict[int, Mark], dict[str, Mark]]:
        """The newest of each partition and of each spool."""
        self._table.renew()
        newest = self._table.decide(_newest)
        partitions, spools = {}, {}
        for row in newest.filter(pc.field("topic") == self._topic).to_pylist():
            mark = Mark(row["at"], row["closed"])
            if row["spool_id"]:
                spools[row["spool_id"]] = mark
            else:
                partitions[row["partition"]] = mark
        return partitions, spools


def fold(lake: LakePlace) -> None:
    """Leaves of each fact the newest, where there are many. What another lander appends meanwhile stays."""

    def once(snapshot: DeltaTable) -> None:
        if dataset(snapshot).count_rows() > _FOLD_ABOVE:
            found = _newest(snapshot)
            old = pc.less(found["at"], (pc.max(found["at"]).as_py() or 0.0) - _FORGET_SECONDS)
            kept = found.filter(pc.invert(pc.and_(found["closed"], old)))
            write_deltalake(snapshot, kept, mode="overwrite")

    Table(lake, WATERMARKS).decide(once)


def _newest(snapshot: DeltaTable) -> pa.Table:
    """A row a fact. Times of a fact only grow, and what is closed stays so."""
    found = dataset(snapshot).to_table()
    names = ["topic", "partition", "spool_id"]
    newest = found.group_by(names).aggregate([("at", "max"), ("closed", "max"), ("landed_at", "max")])
    return newest.rename_columns([*names, "at", "closed", "landed_at"]).cast(SCHEMAS[WATERMARKS])
