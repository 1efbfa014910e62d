"""A dataset is made again from its manifest alone, byte for byte; where that cannot be, it is said why."""

from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from ingest import sorted_runs
from ingest.config import AttributionSettings, DatasetSettings, ImplicitSettings, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.freeze import freeze
from ingest.lake import FEEDBACK, TURNS, open_table
from ingest.refreeze import NotReproducible, refreeze
from ingest.sorted_runs import merge
from tests.lakes import feedback, land, turn
from tests.unit.test_datasets import accept, candidate, cut, judged


def again(lake: Path, manifest: DatasetManifest) -> str:
    return refreeze(manifest, lake=lake, datasets=lake / "datasets", into=lake / "again").sha256


def test_the_manifest_alone_gives_the_same_bytes_whatever_came_later(tmp_path: Path) -> None:
    judged(tmp_path, *[f"{i:03}" for i in range(60)])
    cut(tmp_path, "d1", max_turns=50)
    accept(tmp_path, "d1")
    judged(tmp_path, *[f"more {i:03}" for i in range(20)], at=300.0)
    cut(tmp_path, "d2", now=1500.0)
    manifest = candidate(tmp_path, "d2")
    accept(tmp_path, "d2")
    assert manifest.subtracted == ("d1",)
    # Later: revised, more of them, one more dataset. Another one of the same turns, too, which was not there then.
    land(tmp_path, "feedback", feedback("000", "reject", received_at=400), feedback("more 000", received_at=1400))
    judged(tmp_path, *[f"later {i}" for i in range(10)], at=1000.0)
    cut(tmp_path, "d3", now=2000.0)
    accept(tmp_path, "d3")
    assert again(tmp_path, manifest) == manifest.rows.sha256
    assert (tmp_path / "again" / "rows.parquet").read_bytes() == (
        tmp_path / "datasets" / "p" / "d2" / "rows.parquet"
    ).read_bytes()
    assert again(tmp_path, candidate(tmp_path, "d1")) == candidate(tmp_path, "d1").rows.sha256


def test_merged_files_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "_RUNS", 2)
    for at in range(4):
        judged(tmp_path, *[f"{at} {i}" for i in range(5)], at=100.0 + at)
    cut(tmp_path, "d1")
    manifest = candidate(tmp_path, "d1")
    for name in (TURNS, FEEDBACK):
        assert merge(open_table(tmp_path, name), name)
    assert again(tmp_path, manifest) == manifest.rows.sha256, "from the files that its versions name"
    cut(tmp_path, "d1", datasets="datasets of merged files")
    assert candidate(tmp_path, "d1", datasets="datasets of merged files").rows == manifest.rows


def test_settings_come_from_the_manifest(tmp_path: Path) -> None:
    judged(tmp_path, "a", "b")
    land(tmp_path, "feedback", feedback("c", key_id="annotator"))
    land(tmp_path, "turns", turn("c"))
    freeze(
        lake=tmp_path,
        datasets=tmp_path / "datasets",
        policy="p",
        dataset_id="d1",
        settings=DatasetSettings(max_turns=9),
        attribution=AttributionSettings(trusted_keys=("annotator",)),
        rewards=RewardSettings(accept=0.5, implicit=ImplicitSettings(dissatisfied=-0.5)),
        now=1000.0,
        watermark=900.0,
    )
    manifest = candidate(tmp_path, "d1")
    assert (len(manifest.pairs), manifest.watermark) == (3, 900.0)
    assert again(tmp_path, manifest) == manifest.rows.sha256


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    cut(tmp_path, "d1")
    accept(tmp_path, "d1")
    judged(tmp_path, "b")
    cut(tmp_path, "d2")
    manifest = candidate(tmp_path, "d2")
    with pytest.raises(NotReproducible, match="schema 1"):
        again(tmp_path, msgspec.structs.replace(manifest, watermark=None))
    with pytest.raises(NotReproducible, match=r"version 99 of the table turns is gone"):
        again(tmp_path, msgspec.structs.replace(manifest, lake_versions=manifest.lake_versions | {"turns": 99}))
    with pytest.raises(NotReproducible, match="dataset d0, whose turns were left out of it, is gone"):
        again(tmp_path, msgspec.structs.replace(manifest, subtracted=("d0",)))
    with pytest.raises(NotReproducible, match=r"settings are not those of everloop .*unheard_of"):
        again(tmp_path, msgspec.structs.replace(manifest, attribution={"unheard_of": 1}))
    other = {"dissatisfied": -0.5, "classifier_digest": "another"}
    changed = manifest.reward_specification | {"implicit": manifest.reward_specification["implicit"] | other}
    with pytest.raises(NotReproducible, match="classifier of what users say is another"):
        again(tmp_path, msgspec.structs.replace(manifest, reward_specification=changed))
    old = msgspec.structs.replace(manifest, reader=manifest.reader | {"pyarrow": "0.1"}, pairs=(), cut_at=0.0)
    with pytest.raises(NotReproducible, match=r"digest of its rows is .* pyarrow was 0\.1 and is"):
        again(tmp_path, old)
    assert not (tmp_path / "datasets" / "p" / "d3").exists()


def test_files_that_were_vacuumed_are_counted(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    judged(tmp_path, "b")
    cut(tmp_path, "d1")
    table = DeltaTable(tmp_path / "turns")
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(NotReproducible, match=r"2 of the 2 files of version \d+ of the table turns are gone"):
        again(tmp_path, candidate(tmp_path, "d1"))
