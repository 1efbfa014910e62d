"""A whole installation forgets: databases, logs, reports and the registry; the receipt says what was done."""

import importlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mlflow import MlflowClient

from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, verify_files, write_manifest
from ingest.receipts import ReceiptState
from pipelines import forgetting
from pipelines.config import Config
from pipelines.errors import PipelineError
from pipelines.forgetting import Forgetting
from pipelines.home import Home as Folders
from pipelines.records import Stage, StageState
from pipelines.runs import Runs
from pipelines.stack.addresses import Addresses
from promotion import registry
from promotion.names import TAG_ERASED
from serving.control.database import Database
from serving.control.subjects import opt_out
from tests.checkpoint_folders import make_checkpoint
from tests.forgetting import mentions
from tests.integration.test_forget import Home, everything_but_anna, filled, home, subject, turn_id, words
from trainer.dataset import read_dataset

__all__ = ["filled", "home"]  # pytest's fixtures

pytestmark = pytest.mark.integration


class Inline:
    """Workers that work in this process."""

    def call(self, family: str, target: str, **arguments: Any) -> Any:
        module, name = target.split(":")
        return msgspec.to_builtins(getattr(importlib.import_module(module), name)(**arguments))


def trained_on(folder: Path, dataset_id: str) -> None:
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | {"dataset_id": dataset_id}))


@pytest.fixture
def whole(home: Home, monkeypatch: pytest.MonkeyPatch) -> tuple[Folders, Forgetting, str]:
    """A home folder with everything that may name somebody; its forgetting, and the registry."""
    folders = Folders(home.root).create()
    for name, parent, dataset_id in (("c1", "base", "d1"), ("c2", "c1", None), ("c3", "base", "other")):
        folder = make_checkpoint(folders.checkpoints, name, policy="helper", parent=parent)
        if dataset_id:
            trained_on(folder, dataset_id)
    make_checkpoint(folders.checkpoints, "base", policy="helper", kind="base", parent=None)
    uri = f"sqlite:///{folders.mlflow / 'mlflow.db'}"
    for name in ("c1", "c2", "c3"):
        registry.register(mlflow=uri, checkpoint=folders.checkpoint("helper", name))
    runs = Runs(folders.database)
    run = runs.create("helper")
    runs.begin(run.run_id, Stage.LAND)
    runs.end(run.run_id, Stage.LAND, StageState.FAILED, error=f"turn {turn_id('anna', 1)} is not one")
    runs.begin(run.run_id, Stage.LAND)
    runs.end(run.run_id, Stage.LAND, StageState.FAILED, error=f"turns: {turn_id('ben', 1)}, {turn_id('anna', 2)}")
    control = Database(str(folders.control))
    with control.write() as session:
        for name in ("anna", "ben"):
            opt_out(session, subject(name), 1.0)
    control.close()
    (folders.logs / "scheduler.log").write_text(f'{{"message": "turns {turn_id("anna", 3)}, {turn_id("ben", 3)}"}}\n')
    (folders.run / "gateway-snapshot.json").write_text(json.dumps({"opted_out": [subject("anna"), subject("ben")]}))
    (folders.mlflow / "artifacts" / "samples.jsonl").write_text(json.dumps({"turn_id": turn_id("anna", 4)}))
    monkeypatch.setattr(forgetting, "mlflow_url", lambda home: uri)
    ports = {"gateway": 1, "control": 2, "mlflow": 3}
    (folders.run / "ports.json").write_bytes(msgspec.json.encode(Addresses(ports=ports)))
    return folders, Forgetting(Config(), folders, Inline()), uri  # type: ignore[arg-type]


def test_every_place_of_an_installation_forgets(whole: tuple[Folders, Forgetting, str], home: Home) -> None:
    folders, forgetting_, uri = whole
    asked = forgetting_.receipts.request("subject", subject("anna"))
    assert forgetting_.receipts.request("subject", subject("anna")) == asked, "asked twice, it is one receipt"
    [receipt] = forgetting_.look(patience=10.0)
    assert (receipt.state, receipt.waits) == (ReceiptState.COMPLETE, "")
    assert mentions(folders.root, words("anna")) == set()
    everything_but_anna(home)
    assert mentions(folders.root, [turn_id("ben", 1), turn_id("ben", 3)]) >= {
        ("pipelines.db", turn_id("ben", 1)),
        ("logs/scheduler.log", turn_id("ben", 3)),
    }
    with closing(sqlite3.connect(folders.control)) as db:
        assert db.execute("SELECT subject FROM opted_out").fetchall() == [(subject("ben"),)]
    assert receipt.removed["turns"] == 16
    assert (receipt.removed["ids"], receipt.removed["opted out"]) == (4, 1)

    assert receipt.checkpoints == ("helper/c1", "helper/c2"), "c2 goes on from c1"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    told = {v.source: v.tags.get(TAG_ERASED) for v in client.search_model_versions("name='helper'")}
    assert told == {
        "everloop:/helper/c1": receipt.receipt_id,
        "everloop:/helper/c2": receipt.receipt_id,
        "everloop:/helper/c3": None,
    }
    assert forgetting_.look() == [], "what is complete is left alone"


def test_the_trainer_reads_the_successor(whole: tuple[Folders, Forgetting, str]) -> None:
    folders, forgetting_, _ = whole
    forgetting_.receipts.request("subject", subject("anna"))
    forgetting_.look(patience=10.0)
    folder = folders.datasets / "helper" / "d1"
    manifest, rows = read_dataset(folder)
    assert manifest.dataset_id == "d1"
    assert len(rows) == len(manifest.pairs) == manifest.statistics["rows"]
    verify_files(folder, (read_manifest(folder, DatasetManifest).rows,))


def test_a_registry_that_is_away_holds_the_receipt_up(
    whole: tuple[Folders, Forgetting, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, forgetting_, uri = whole

    def away(home: Folders) -> str:
        raise PipelineError("MLflow does not answer")

    forgetting_.receipts.request("subject", subject("anna"))
    monkeypatch.setattr(forgetting, "mlflow_url", away)
    [receipt] = forgetting_.look(patience=10.0)
    assert (receipt.state, receipt.waits) == (ReceiptState.REMOVING, "MLflow does not answer")
    assert receipt.checkpoints == ("helper/c1", "helper/c2")
    monkeypatch.setattr(forgetting, "mlflow_url", lambda home: uri)
    [receipt] = forgetting_.look()
    assert receipt.state is ReceiptState.COMPLETE


def test_a_run_that_trains_on_the_old_rows_is_waited_for(whole: tuple[Folders, Forgetting, str]) -> None:
    folders, forgetting_, _ = whole
    runs = Runs(folders.database)
    run = runs.create("helper")
    folder = folders.datasets / "helper" / "d1"
    manifest = msgspec.structs.replace(read_manifest(folder, DatasetManifest), dataset_id=run.dataset_id)
    write_manifest(folder, manifest)
    folder.rename(folder.with_name(run.dataset_id))
    runs.begin(run.run_id, Stage.TRAIN)
    forgetting_.receipts.request("subject", subject("anna"))
    [receipt] = forgetting_.look(patience=10.0)
    assert receipt.state is ReceiptState.REMOVING
    assert f"run {run.run_id} is training" in receipt.waits
    assert mentions(folders.root, words("anna")) == set()
    runs.end(run.run_id, Stage.TRAIN, StageState.FINISHED)
    trained_on(make_checkpoint(folders.checkpoints, run.checkpoint_id, policy="helper"), run.dataset_id)
    [receipt] = forgetting_.look()
    assert receipt.state is ReceiptState.COMPLETE
    assert receipt.checkpoints == (f"helper/{run.checkpoint_id}",)


def test_kafka_is_waited_for_until_its_retention_has_passed(
    whole: tuple[Folders, Forgetting, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, forgetting_, _ = whole
    bounds: dict[str, dict[int, int]] = {"begins": {0: 0, 1: 5}, "ends": {0: 7, 1: 5}}
    real = Inline.call

    def call(self: Inline, family: str, target: str, **arguments: Any) -> Any:
        return bounds if target.endswith("topic_bounds") else real(self, family, target, **arguments)

    monkeypatch.setattr(Inline, "call", call)
    forgetting_.receipts.request("subject", subject("anna"))
    [receipt] = forgetting_.look(patience=10.0)
    assert (receipt.state, receipt.kafka_ends) == (ReceiptState.RETAINED, {0: 7, 1: 5})
    assert "1 of 2 partitions" in receipt.waits
    bounds["begins"][0] = 7
    [receipt] = forgetting_.look()
    assert receipt.state is ReceiptState.COMPLETE
    assert receipt.completed_at is not None
