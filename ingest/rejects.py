"""Rejects that can be read after all: an older lander could not know an enum's new value, or a field's new form.

A reject has its bytes and the code that could not read them. When other code lands, it tries them again, once. Rows are
told apart by (spool id, sequence), which are looked for in the table that they are appended to; every such append has
one application id, so that of two at once one is refused and looks again.
"""

import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ingest.commits import ATTEMPTS, REWRITER, Erasures, LandError, Moved, Table, commit
from ingest.config import LakePlace
from ingest.contracts.events import Event, Record
from ingest.lake import ERASURES, FEEDBACK, REJECTS, TURNS, dataset, open_table
from ingest.rows import READER, sort

_RELANDING = "everloop/rejects"
"""The application id."""
_BATCH = 500


def reland_rejects(lake: LakePlace, erasures: Erasures, screen: Callable[[Event], Event] | None = None) -> int:
    """Lands the rejects that this code can read; returns how many. Raises `LandError`."""
    landed = 0
    while True:
        old = dataset(open_table(lake, REJECTS))
        columns = ["spool_id", "sequence", "payload"]
        found = old.scanner(columns=columns, filter=pc.field("reader") != READER).head(_BATCH).to_pylist()
        if not found:
            return landed
        batch = sorted((Record(**row) for row in found), key=lambda record: (record.spool_id, record.sequence))
        landed += _reland(lake, batch, erasures, screen)


def _reland(lake: LakePlace, batch: list[Record], erasures: Erasures, screen: Callable[[Event], Event] | None) -> int:
    """A batch of rejects that other code had; those that this one rejects as well are its own afterwards."""
    landed = 0
    for _ in range(ATTEMPTS):
        found = sort(batch, erasures.read(), time.time(), screen)
        try:
            for name in (ERASURES, FEEDBACK, TURNS):
                landed += _append(Table(lake, name), found.tables[name], None if name == ERASURES else erasures)
        except Moved:
            continue
        break
    else:
        raise LandError("erasures came faster than rejects could be landed; land again")
    still = set(zip(*(found.tables[REJECTS][name].to_pylist() for name in ("spool_id", "sequence")), strict=True))
    _tell(Table(lake, REJECTS), batch, still)
    return landed


def _append(table: Table, rows: pa.Table, erasures: Erasures | None) -> int:
    def fresh(snapshot: DeltaTable) -> int:
        if erasures is not None:
            erasures.check()
        there = dataset(snapshot).to_table(
            columns=["spool_id", "sequence"], filter=pc.field("spool_id").isin(pc.unique(rows["spool_id"]))
        )
        have = set(zip(there["spool_id"].to_pylist(), there["sequence"].to_pylist(), strict=True))
        places = zip(rows["spool_id"].to_pylist(), rows["sequence"].to_pylist(), strict=True)
        new = rows.filter(pa.array([place not in have for place in places], pa.bool_()))
        if new.num_rows:
            commit(snapshot, new, {_RELANDING: (snapshot.transaction_version(_RELANDING) or 0) + 1}, time.time())
        return new.num_rows

    return table.decide(fresh) if rows.num_rows else 0


def _tell(table: Table, batch: list[Record], still: set[tuple[str, int]]) -> None:
    """Takes out of the table what was read or is erased; what was not is this code's reject from now on."""
    gone = [r for r in batch if (r.spool_id, r.sequence) not in still]
    left = [r for r in batch if (r.spool_id, r.sequence) in still]
    if gone:
        table.decide(lambda snapshot: snapshot.delete(_places(gone), REWRITER))
    if left:
        told = {"reader": f"'{READER}'"}
        table.decide(lambda snapshot: snapshot.update(told, predicate=_places(left), writer_properties=REWRITER))


def _places(records: list[Record]) -> str:
    return " OR ".join(f"(spool_id = '{r.spool_id}' AND sequence = {r.sequence})" for r in records)
