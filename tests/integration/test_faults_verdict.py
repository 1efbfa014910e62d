"""The verdict of a fault run, against lakes and datasets that are wrong in each way that it must see."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.engine import MODEL
from ingest.lake import FEEDBACK, TURNS
from tests.faults.faults import Destroyed
from tests.faults.ledger import Ledger
from tests.faults.verdict import Verdict, judge
from tests.lakes import feedback, land, turn

pytestmark = pytest.mark.integration


def verdict(home: Path, told: str, destroyed: Destroyed, *datasets: list[tuple[str, int, int]]) -> Verdict:
    """Of the lake in `home`."""
    (home / "ledger").write_text("".join(f"{line} 1.0\n" for line in told.split("; ")))
    for number, pairs in enumerate(datasets):
        folder = home / "datasets" / MODEL / f"d{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(msgspec.json.encode({"pairs": pairs}))
    return judge(Ledger(home / "ledger"), home / "lake", home / "datasets", destroyed)


def test_what_is_lost_doubled_altered_untold_or_used_twice_is_seen(tmp_path: Path) -> None:
    lake, nothing = tmp_path / "lake", Destroyed()
    land(lake, TURNS, turn("a", policy=MODEL), turn("b", policy=MODEL, spool_id="x", sequence=7))
    land(lake, FEEDBACK, feedback("a", feedback_id="f"))
    right = verdict(tmp_path, "turn a; turn b; feedback f", nothing, [("a", 0, 1)], [("b", 0, 1)])
    assert right.holds()
    assert (right.turns, right.feedback, right.datasets, right.in_datasets) == (2, 1, 2, 2)

    assert verdict(tmp_path, "turn a; turn c; feedback f; feedback g", nothing).lost == ("c", "g")
    gone = verdict(tmp_path, "turn a; turn c; feedback f", Destroyed([("x", 9)], {"c"}))
    assert (gone.lost, gone.destroyed, gone.untold) == ((), 1, ("x 9",))
    assert verdict(tmp_path, "turn a; feedback f", Destroyed([("x", 7)])).altered == ("b",)
    again = verdict(tmp_path, "turn a; feedback f", nothing, [("a", 0, 1)], [("a", 0, 2)])
    assert again.in_two_datasets == ("a",)
    assert not any(found.holds() for found in (gone, again))
    assert not verdict(tmp_path, "turn a; turn b", nothing, [("a", 0, 1)], [("b", 0, 1)]).holds(), "no feedback at all"

    land(lake, TURNS, turn("a", policy=MODEL))
    twice = verdict(tmp_path, "turn a; feedback f", nothing)
    assert (twice.duplicated, twice.stateless) == (("a",), 2)
