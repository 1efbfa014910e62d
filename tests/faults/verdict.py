"""The ledger against the lake: what was acknowledged and is not there, or there twice; states; datasets."""

from collections import Counter
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from benchmarks.engine import MODEL
from ingest.attribution import STATES, Cut, attributed
from ingest.config import RewardSettings
from ingest.datasets import MANIFEST
from ingest.lake import FEEDBACK, REJECTS, TURNS, read
from tests.faults.faults import Destroyed
from tests.faults.freezer import ATTRIBUTION
from tests.faults.ledger import Ledger

Pair = tuple[str, int, int]
"""Turn, sample, feedback revision."""


class _Pairs(msgspec.Struct):
    """The part of a manifest that says what was used."""

    pairs: list[Pair]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of everything that was acknowledged. What must be empty or zero is tested by `holds`."""

    acknowledged: int
    turns: int
    feedback: int
    landed_turns: int
    landed_feedback: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    rejected: int
    altered: tuple[str, ...]
    """Rows of a damaged page that landed all the same."""
    untold: tuple[str, ...]
    """Places of rows that were destroyed, and which no reject of the lake tells of."""
    destroyed: int
    """Acknowledged events that stood on a damaged page and are gone; they do not count as lost."""
    states: dict[str, int]
    stateless: int
    """Turns of the lake with no state, or more than one."""
    datasets: int
    in_datasets: int
    in_two_datasets: tuple[str, ...]
    """Turns: what was trained on is not trained on again, at any revision."""

    def holds(self) -> bool:
        """Whether nothing was lost, doubled, or used twice, and there was something of each."""
        wrong = (self.lost, self.duplicated, self.altered, self.untold, self.in_two_datasets)
        some = (self.turns, self.feedback, self.datasets, self.in_datasets)
        return not any(wrong) and self.rejected == self.stateless == 0 and all(some)


def judge(ledger: Ledger, lake: Path, datasets: Path, destroyed: Destroyed) -> Verdict:
    """Asks DuckDB. Nothing may be at work on the lake any more."""
    told = {kind: ledger.ids(kind) for kind in ("turn", "feedback")}
    lost = missing(ledger, lake, destroyed)
    with duckdb.connect() as db:
        for name in (TURNS, FEEDBACK, REJECTS):
            db.register(name, read(lake, name))
        duplicated = _column(
            db,
            "SELECT turn_id FROM turns GROUP BY turn_id, sample HAVING count(*) > 1 UNION ALL "
            "SELECT feedback_id FROM feedback GROUP BY feedback_id HAVING count(*) > 1",
        )
        db.register(
            "destroyed",
            pa.table(
                {
                    "spool_id": pa.array([spool for spool, _ in destroyed.places], pa.string()),
                    "sequence": pa.array([sequence for _, sequence in destroyed.places], pa.int64()),
                }
            ),
        )
        altered = _column(
            db,
            "SELECT turn_id FROM turns SEMI JOIN destroyed USING (spool_id, sequence) UNION ALL "
            "SELECT feedback_id FROM feedback SEMI JOIN destroyed USING (spool_id, sequence)",
        )
        untold = _column(
            db, "SELECT spool_id || ' ' || sequence FROM destroyed ANTI JOIN rejects USING (spool_id, sequence)"
        )
        counts = {
            name: db.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in (TURNS, FEEDBACK, REJECTS)
        }
        # A row that was destroyed may be told of as a reject; any other reject is an event that nobody learns from.
        ((rejected,),) = db.execute(
            "SELECT count(*) FROM rejects ANTI JOIN destroyed USING (spool_id, sequence)"
        ).fetchall()
        ((last,),) = db.execute("SELECT coalesce(max(finished_at), 0) FROM turns").fetchall()
    with attributed(lake, MODEL, ATTRIBUTION, RewardSettings(), Cut(last + 1.0, 0.0), ()) as join:
        states = dict(join.execute("SELECT state, count(*) FROM attributed GROUP BY state").fetchall())
        ((once,),) = join.execute(
            "SELECT count(*) FROM (SELECT 1 FROM attributed GROUP BY turn_id, sample HAVING count(*) = 1)"
        ).fetchall()
    assert set(states) <= set(STATES), states
    accepted = filled(datasets)
    used = Counter((turn, sample) for pairs in accepted for turn, sample, _ in pairs)
    return Verdict(
        acknowledged=len(told["turn"]) + len(told["feedback"]),
        turns=len(told["turn"]),
        feedback=len(told["feedback"]),
        landed_turns=counts[TURNS],
        landed_feedback=counts[FEEDBACK],
        lost=lost,
        duplicated=tuple(duplicated),
        rejected=rejected,
        altered=tuple(altered),
        untold=tuple(untold),
        destroyed=len(told["turn"] & destroyed.turns) + len(told["feedback"] & destroyed.feedback),
        states=states,
        stateless=counts[TURNS] - once,
        datasets=len(accepted),
        in_datasets=used.total(),
        in_two_datasets=tuple(sorted({turn for (turn, _), times in used.items() if times > 1})),
    )


def missing(ledger: Ledger, lake: Path, destroyed: Destroyed) -> tuple[str, ...]:
    """What was acknowledged and is not in the lake, but for what was destroyed."""
    found = {"turn": (TURNS, "turn_id", destroyed.turns), "feedback": (FEEDBACK, "feedback_id", destroyed.feedback)}
    lost: list[str] = []
    for kind, (name, column, gone) in found.items():
        landed = read(lake, name).to_table(columns=[column])[column].to_pylist()
        lost += sorted(ledger.ids(kind) - gone - set(landed))
    return tuple(lost)


def filled(datasets: Path) -> list[list[Pair]]:
    """The pairs of each accepted dataset that has any."""
    found = [path.read_bytes() for path in sorted((datasets / MODEL).glob(f"*/{MANIFEST}"))]
    return [pairs for manifest in found if (pairs := msgspec.json.decode(manifest, type=_Pairs).pairs)]


def _column(db: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    return [value for (value,) in db.execute(query).fetchall()]
