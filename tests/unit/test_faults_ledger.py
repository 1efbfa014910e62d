"""What a fault run says of the load that its faults saw."""

from pathlib import Path

import pytest

from tests.faults.ledger import Ledger, Seen, seen


def test_acknowledgements_belong_to_the_fault_before_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    assert ledger.lines() == []
    path.write_text("turn a 1.0\nturn b 2.5\nfeedback c 2.75\nturn d 9.")
    assert [line.id for line in ledger.lines()] == ["a", "b", "c"], "the last is not whole"
    since = len(ledger.lines())
    with path.open("a") as file:
        file.write("0\nfeedback e 9.5\n")
    assert ledger.goes_on(since, turns=1, feedback=1)
    assert not ledger.goes_on(since, turns=2, feedback=1)
    assert ledger.ids("turn") == {"a", "b", "d"}
    assert ledger.silence() == pytest.approx(6.25)
    faults = [(2.0, "gateway"), (3.0, "disk full"), (9.0, "gateway")]
    assert seen(ledger.lines(), faults) == {
        "gateway": Seen(faults=2, turns=2, feedback=2, fewest=2),
        "disk full": Seen(faults=1, turns=0, feedback=0, fewest=0),
    }
