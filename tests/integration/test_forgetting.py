"""A whole installation forgets: databases, logs, reports and the registry; the receipt says what was done."""

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mlflow import MlflowClient

from evaluation.suites import Question, load_suite
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, write_manifest
from ingest.contracts.reading import reading
from ingest.contracts.turn import Turn
from ingest.kafka_retention import Retention
from ingest.lake import TURNS
from ingest.receipts import ReceiptState
from pipelines import forgetting
from pipelines.config import Config
from pipelines.errors import PipelineError
from pipelines.forgetting import Forgetting
from pipelines.home import Home as Folders
from pipelines.records import Stage, StageState
from pipelines.runs import Runs
from pipelines.stack import secrets
from pipelines.stack.addresses import Addresses
from pipelines.workers import plain
from promotion import registry
from promotion.names import TAG_ERASED
from serving.control.database import Database
from serving.control.subjects import opt_out
from tests.checkpoint_folders import make_checkpoint
from tests.forgetting import Inline, mentions
from tests.integration.test_forget import (
    SECRET,
    Home,
    everything_but_anna,
    filled,
    session,
    subject,
    turn,
    turn_id,
    words,
)
from trainer.dataset import read_dataset

__all__ = ["filled"]  # pytest's fixture

pytestmark = pytest.mark.integration


def asking(question: Question) -> Turn:
    """An evaluation asked a question that a user had asked; the gateway wrote that down as it does any turn."""
    values = {
        "turn_id": turn_id(f"evaluation {question.id}", 1),
        "subject": "",
        "trainable": False,
        "untrainable_reason": "opted out",
    }
    return turn(question.id, 1, session_id=session(question.session), **values)


def trained_on(folder: Path, dataset_id: str) -> None:
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | {"dataset_id": dataset_id}))


def registry_of(folders: Folders) -> str:
    return f"sqlite:///{folders.mlflow / 'mlflow.db'}"


@pytest.fixture(scope="module")
def furnished(filled: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with everything that may name somebody."""
    root = tmp_path_factory.mktemp("whole") / "home"
    shutil.copytree(filled.root, root)
    folders = Folders.at(root).create()
    for name, parent, dataset_id in (("c1", "base", "d1"), ("c2", "c1", None), ("c3", "base", "other")):
        folder = make_checkpoint(folders.checkpoints, name, policy="helper", parent=parent)
        if dataset_id:
            trained_on(folder, dataset_id)
    make_checkpoint(folders.checkpoints, "base", policy="helper", kind="base", parent=None)
    for name in ("c1", "c2", "c3"):
        registry.register(mlflow=registry_of(folders), checkpoint=folders.checkpoint("helper", name))
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
    for name in ("gateway-snapshot.json", ".gateway-snapshot.json.7.partial"):
        (folders.run / name).write_text(json.dumps({"opted_out": [subject("anna"), subject("ben")]}))
    (folders.run / "join-killed").mkdir()
    (folders.run / "join-killed" / "spilled").write_text("question of anna")
    for place in (
        folders.mlflow / "artifacts" / "1" / "ab" / "artifacts",
        folders.root / "evaluations" / "hand-1",
        folders.checkpoint("helper", "c1"),
    ):
        place.mkdir(parents=True, exist_ok=True)
        sample = {"id": "q", "question": "of nobody", "champion": [{"turn_id": turn_id("anna", 4)}]}
        (place / "samples.jsonl").write_text(json.dumps(sample) + "\n")
        (place / "report.html").write_text(f"<td>{turn_id('anna', 5)}</td><td>{turn_id('ben', 5)}</td>")
    ports = {"gateway": 1, "control": 2, "mlflow": 3}
    (folders.run / "ports.json").write_bytes(msgspec.json.encode(Addresses(ports=ports)))
    return root


@pytest.fixture
def home(furnished: Path, tmp_path: Path) -> Home:
    """A copy, for a test to spoil."""
    shutil.copytree(furnished, tmp_path / "home")
    return Home(tmp_path / "home")


@pytest.fixture
def whole(home: Home, monkeypatch: pytest.MonkeyPatch) -> tuple[Folders, Forgetting, str]:
    """Its folders, its forgetting, and the registry."""
    folders = Folders.at(home.root)
    uri = registry_of(folders)
    monkeypatch.setattr(forgetting, "mlflow_url", lambda home: uri)
    (home.root / "questions.jsonl").write_text(
        "".join(
            json.dumps({"id": name, "question": f"question of {name}", "meta": {"turn": turn_id(name, 6)}}) + "\n"
            for name in ("anna", "ben")
        )
    )
    kept = secrets.load_or_create(folders.run / "secrets.json")
    secrets.save(folders.run / "secrets.json", msgspec.structs.replace(kept, hash_secret=SECRET.hex()))
    home.write(*(asking(question) for question in load_suite(home.root / "questions.jsonl")))
    suite = {"suite": home.root / "questions.jsonl", "target": "mine:score"}
    config = Config.model_validate({"policies": {"helper": {"model": home.root, "evaluation": suite}}})
    return folders, Forgetting(config, folders, Inline()), uri  # type: ignore[arg-type]


def test_every_place_of_an_installation_forgets(whole: tuple[Folders, Forgetting, str], home: Home) -> None:
    folders, forgetting_, uri = whole
    asked = forgetting_.receipts.request("subject", subject("anna"))
    assert forgetting_.receipts.request("subject", subject("anna")) == asked, "asked twice, it is one receipt"
    [receipt] = forgetting_.look(patience=10.0)
    assert (receipt.state, receipt.waits) == (ReceiptState.COMPLETE, "")
    assert mentions(folders.root, words("anna")) == set()
    assert home.rows(TURNS, "turn_id").count(turn_id("evaluation ben", 1)) == 1
    assert turn_id("evaluation anna", 1) not in home.rows(TURNS, "turn_id")
    everything_but_anna(home, evaluated=["ben"])
    assert mentions(folders.root, [turn_id("ben", 1), turn_id("ben", 3)]) >= {
        ("pipelines.db", turn_id("ben", 1)),
        ("logs/scheduler.log", turn_id("ben", 3)),
    }
    with closing(sqlite3.connect(folders.control)) as db:
        assert db.execute("SELECT subject FROM opted_out").fetchall() == [(subject("ben"),)]
    assert receipt.removed["turns"] == 16 + 1, "hers, and the one in which an evaluation asked her question"
    assert (receipt.removed["ids"], receipt.removed["opted out"], receipt.removed["questions"]) == (10, 1, 1)
    assert json.loads((home.root / "questions.jsonl").read_text())["id"] == "ben"

    assert receipt.checkpoints == ("helper/c1", "helper/c2"), "c2 goes on from c1"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    told = {v.source: v.tags.get(TAG_ERASED) for v in client.search_model_versions("name='helper'")}
    assert told == {
        "everloop:/helper/c1": receipt.receipt_id,
        "everloop:/helper/c2": receipt.receipt_id,
        "everloop:/helper/c3": None,
    }
    assert forgetting_.look() == [], "what is complete is left alone"

    manifest, rows = read_dataset(folders.datasets / "helper" / "d1")  # the trainer takes the successor as any other
    assert manifest.dataset_id == "d1"
    assert len(rows) == len(manifest.pairs) == manifest.statistics["rows"]


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


def test_a_training_on_the_old_rows_is_waited_for_until_its_checkpoint_is_tagged(
    whole: tuple[Folders, Forgetting, str],
) -> None:
    """By hand or in a run: whoever trains is the dataset's reader, and a run registers what comes of it."""
    folders, forgetting_, uri = whole
    runs = Runs(folders.database)
    run = runs.create("helper")
    folder = folders.datasets / "helper" / "d1"
    manifest = msgspec.structs.replace(read_manifest(folder, DatasetManifest), dataset_id=run.dataset_id)
    write_manifest(folder, manifest)
    folder = folder.rename(folder.with_name(run.dataset_id))
    forgetting_.receipts.request("subject", subject("anna"))
    with reading(folder):
        [receipt] = forgetting_.look(patience=10.0)
        assert receipt.state is ReceiptState.REMOVING
        assert f"dataset {run.dataset_id} is being trained on" in receipt.waits
        assert mentions(folders.root, words("anna")) == set()
        checkpoint = make_checkpoint(folders.checkpoints, run.checkpoint_id, policy="helper")
        trained_on(checkpoint, run.dataset_id)
    [receipt] = forgetting_.look()
    assert receipt.state is ReceiptState.REMOVING
    assert f"run {run.run_id} is to register its checkpoint" in receipt.waits
    runs.begin(run.run_id, Stage.REGISTER)
    registry.register(mlflow=uri, checkpoint=checkpoint)
    runs.end(run.run_id, Stage.REGISTER, StageState.FINISHED)
    [receipt] = forgetting_.look()
    assert receipt.state is ReceiptState.COMPLETE
    assert receipt.checkpoints == (f"helper/{run.checkpoint_id}",)
    # What goes on from it later is registered with its tag.
    registry.register(
        mlflow=uri, checkpoint=make_checkpoint(folders.checkpoints, "later", policy="helper", parent=run.checkpoint_id)
    )
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    told = {v.source: v.tags.get(TAG_ERASED) for v in client.search_model_versions("name='helper'")}
    assert told[f"everloop:/helper/{run.checkpoint_id}"] == told["everloop:/helper/later"] == receipt.receipt_id
    assert told["everloop:/helper/c3"] is None


def test_kafka_is_waited_for_until_its_retention_has_passed_and_its_files_are_gone(
    whole: tuple[Folders, Forgetting, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, forgetting_, _ = whole
    kept = Retention({0: 0, 1: 5}, {0: 7, 1: 5}, segment_seconds=86400, retention_seconds=7 * 86400, file_seconds=1000)
    real = Inline.call

    def call(self: Inline, family: str, target: str, **arguments: Any) -> Any:
        return plain(kept) if target.endswith("retention_of") else real(self, family, target, **arguments)

    monkeypatch.setattr(Inline, "call", call)
    forgetting_.receipts.request("subject", subject("anna"))
    [receipt] = forgetting_.look(patience=10.0)
    assert (receipt.state, receipt.kafka_ends) == (ReceiptState.RETAINED, {0: 7, 1: 5})
    assert "1 of 2 partitions" in receipt.waits
    assert receipt.retained_at is not None
    last = datetime.fromtimestamp(receipt.retained_at + 8 * 86400, UTC)
    assert f"until {last:%Y-%m-%d %H:%M} UTC at the latest" in receipt.waits
    kept = msgspec.structs.replace(kept, retention_seconds=None)
    [receipt] = forgetting_.look()
    assert "for ever: set `retention.ms`" in receipt.waits
    kept = msgspec.structs.replace(kept, begins={0: 7, 1: 5})
    [receipt] = forgetting_.look()
    assert (receipt.state, receipt.waits) == (ReceiptState.RETAINED, "Kafka removes its files within 1000 seconds")
    kept = msgspec.structs.replace(kept, begins={}, file_seconds=0.0)
    [receipt] = forgetting_.look()
    assert receipt.state is ReceiptState.RETAINED
    assert "does not show the topic's partitions" in receipt.waits
    kept = msgspec.structs.replace(kept, begins={0: 7, 1: 5})
    refused = Path(folders.lake) / "turns" / "written-for-a-commit-that-was-refused.parquet"
    refused.write_bytes(b"what anna said")
    [receipt] = forgetting_.look()
    assert not refused.exists()
    assert receipt.state is ReceiptState.COMPLETE
    assert receipt.completed_at is not None
