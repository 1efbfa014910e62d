"""Lineage from the manifests and the lake alone: a checkpoint to its turns, and a turn to what learned from it."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from ingest.config import AttributionSettings, RewardSettings
from ingest.contracts.verdict import Decision
from ingest.lake import TURNS, read
from ingest.receipts import Receipts
from ingest.trace import TraceError, trace_checkpoint, trace_turn
from pipelines.runs import Runs
from tests.checkpoint_folders import make_checkpoint, make_verdict
from tests.integration.test_command_line import everloop
from tests.integration.test_forget import Home, filled, home, subject, turn_id
from tests.unit.test_config import GOOD

__all__ = ["filled", "home"]  # pytest's fixtures

pytestmark = pytest.mark.integration

RULES = {"helper": (AttributionSettings(), RewardSettings())}


@pytest.fixture
def checkpoints(home: Home) -> Path:
    """`base` → `c1`, of dataset `d1` → `c2`, of none that is here."""
    folder = home.root / "checkpoints"
    make_checkpoint(folder, "base", policy="helper", kind="base", parent=None)
    one = make_checkpoint(folder, "c1", policy="helper")
    manifest = json.loads((one / "manifest.json").read_text())
    (one / "manifest.json").write_text(json.dumps(manifest | {"dataset_id": "d1"}))
    make_verdict(one, Decision.PROMOTE)
    make_checkpoint(folder, "c2", policy="helper", parent="c1")
    return folder


def test_a_checkpoint_leads_to_its_turns_and_their_places(home: Home, checkpoints: Path) -> None:
    found = trace_checkpoint("c1", None, lake=home.lake, datasets=home.datasets, checkpoints=checkpoints)
    assert (found.policy, found.verdict) == ("helper", "promote against base")
    assert [ancestor.checkpoint_id for ancestor in found.ancestors] == ["base"]
    assert found.dataset is not None
    assert set(found.dataset.lake_versions) == {"turns", "feedback", "erasures"}
    places = {
        (row["turn_id"], row["sample"]): (row["spool_id"], row["sequence"])
        for row in read(home.lake, TURNS).to_table(columns=["turn_id", "sample", "spool_id", "sequence"]).to_pylist()
    }
    assert len(found.dataset.turns) == 24
    for turn in found.dataset.turns:
        assert places[turn.turn_id, turn.sample] == (turn.spool_id, turn.sequence)
        first, last = found.dataset.log_ranges[turn.spool_id or ""]
        assert first <= (turn.sequence or 0) <= last


def test_a_turn_leads_to_what_learned_from_it(home: Home, checkpoints: Path) -> None:
    [found] = trace_turn(
        turn_id("ben", 1),
        lake=home.lake,
        datasets=home.datasets,
        checkpoints=checkpoints,
        rules=RULES,
        now=2e9,
        watermark=2e9,
    )
    assert found.judged is not None
    assert found.judged.state == "settled"
    assert {signal.kind for signal in found.judged.signals if signal.status == "counted"} == {"accept", "outcome"}
    assert found.datasets == ("d1",)
    assert [(c.checkpoint_id, c.learned) for c in found.checkpoints] == [("c1", True), ("c2", False)]
    [later] = trace_turn(
        turn_id("ben", 9),
        lake=home.lake,
        datasets=home.datasets,
        checkpoints=checkpoints,
        rules={},
        now=2e9,
        watermark=2e9,
    )
    assert (later.judged, later.datasets, later.checkpoints) == (None, (), ())


def test_what_was_forgotten_is_counted_and_not_named(home: Home, checkpoints: Path) -> None:
    receipt_id = Receipts(home.receipts).request("subject", subject("anna")).receipt_id
    home.erase(receipt_id)
    found = trace_checkpoint("c1", "helper", lake=home.lake, datasets=home.datasets, checkpoints=checkpoints)
    assert found.dataset is not None
    assert (len(found.dataset.turns), found.dataset.erased) == (16, 8)
    places = {"lake": home.lake, "datasets": home.datasets, "checkpoints": checkpoints}
    with pytest.raises(TraceError, match=f"was erased, by receipt {receipt_id}: `everloop forget status {receipt_id}`"):
        trace_turn(turn_id("anna", 1), **places, rules=RULES, now=2e9, watermark=2e9)


def test_what_was_removed_is_told_as_far_as_others_name_it(home: Home, checkpoints: Path) -> None:
    places = {"lake": home.lake, "datasets": home.datasets, "checkpoints": checkpoints}
    shutil.rmtree(home.datasets / "helper" / "d1")
    found = trace_checkpoint("c1", None, **places)
    assert (found.dataset_id, found.dataset, found.verdict) == ("d1", None, "promote against base")
    shutil.rmtree(checkpoints / "helper" / "c1")
    with pytest.raises(TraceError, match='"c1" was removed: helper/c2 went on from it'):
        trace_turn("c1", **places, rules=RULES, now=2e9, watermark=2e9)
    found = trace_checkpoint("c2", None, **places)
    assert (found.ancestors, found.before) == ((), "c1")
    for name in ("c9", "c*", "[", "/", "'; --"):
        with pytest.raises(TraceError, match=re.escape(f'no checkpoint "{name}", and no turn in the lake')):
            trace_turn(name, **places, rules=RULES, now=2e9, watermark=2e9)
        with pytest.raises(TraceError, match=re.escape(f'no checkpoint "{name}" below')):
            trace_checkpoint(name, None, **places)


def test_people_see_a_tree_and_programs_json(home: Home, checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "everloop.toml").write_text(GOOD.replace('home = "here"', f'home = "{home.root}"'))
    done = everloop(tmp_path, "trace", "c1")
    assert done.returncode == 0, done.stderr
    assert "checkpoint helper/c1, full" in done.stdout
    assert "dataset d1: 24 rows" in done.stdout
    assert "log: spool " in done.stdout
    done = everloop(tmp_path, "trace", turn_id("ben", 1), "--json")
    assert done.returncode == 0, done.stderr
    [sample] = json.loads(done.stdout)
    assert (sample["judged"]["state"], sample["datasets"]) == ("settled", ["d1"])
    done = everloop(tmp_path, "trace", turn_id("ben", 1))
    assert "accept of user about its turn" in done.stdout
    assert "what went on from there" in done.stdout
    done = everloop(tmp_path, "trace", "c9")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'there is no checkpoint "c9", and no turn' in done.stderr
    Runs(home.root / "pipelines.db").create("helper")
    [run] = Runs(home.root / "pipelines.db").history()
    assert f"`everloop runs {run.run_id}` tells" in everloop(tmp_path, "trace", run.checkpoint_id).stderr
    assert msgspec.json.decode(everloop(tmp_path, "trace", "c1", "--json").stdout)["dataset"]["dataset_id"] == "d1"
