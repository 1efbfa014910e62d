"""Forgetting beside what goes on: a gateway records, a lander lands, datasets are frozen and go through their gates.

Stages of this home keep apart by the lock of their workers; the lander does not, as one on another machine.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ingest import forget, land
from ingest.config import AttributionSettings, DatasetSettings, GateSettings, LakeSettings, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.feedback import Kind
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE
from ingest.lake import FEEDBACK, TURNS
from ingest.receipts import Receipts, ReceiptState
from ingest.spool import Spool
from pipelines import forgetting
from pipelines.config import Config
from pipelines.errors import StageFailed
from pipelines.forgetting import Forgetting
from pipelines.home import Home as Folders
from pipelines.stack.addresses import Addresses
from pipelines.workers import Workers
from tests.forgetting import Inline, mentions
from tests.integration.test_forget import LOG, START, Home, judged, subject, turn, turn_id, words

pytestmark = pytest.mark.integration

ROUNDS = 6
FREEZINGS = 3
A_ROUND = 4
"""Turns of each person that a gateway records in a round."""
OTHERS = ("ben", "carl")


def installed(home: Home) -> Folders:
    folders = Folders.at(home.root).create()
    (folders.run / "ports.json").write_bytes(msgspec.json.encode(Addresses(ports={"gateway": 1})))
    return folders


def config_of(home: Home) -> Config:
    suite = {"suite": home.root / "questions.jsonl", "target": "mine:score"}
    policies = {"helper": {"model": home.root, "evaluation": suite}}
    return Config.model_validate({"log": {"kind": "embedded"}, "policies": policies})


def lands(home: Home, workers: Workers) -> None:
    settings = LakeSettings(upkeep_seconds=0.001)  # it merges files in every round
    workers.call("ingest", "ingest.land:land", log=LOG, spool=home.spool, lake=home.lake, settings=settings)


def freezes(home: Home, workers: Workers, dataset_id: str, gate: GateSettings) -> str:
    """What became of the dataset."""
    where: dict[str, Any] = {"datasets": home.datasets, "lake": home.lake, "policy": "helper", "dataset_id": dataset_id}
    now = START + 1000
    settings = {"settings": DatasetSettings(), "attribution": AttributionSettings(), "rewards": RewardSettings()}
    workers.call("ingest", "ingest.freeze:freeze", **where, **settings, now=now, watermark=now)
    suites = home.root / "suites.toml"
    try:
        workers.call("ingest", "ingest.gate:gate", **where, settings=gate, suites=suites, docs=home.docs)
    except StageFailed as failed:
        return failed.kind
    return "accepted"


def test_nothing_of_the_forgotten_is_left_by_what_went_on_meanwhile(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    folders = installed(home)
    locks = folders.run / "locks"
    ours, theirs, elsewhere = Workers(locks), Workers(locks), Workers(tmp_path / "elsewhere")
    begun = threading.Barrier(3)
    """Both have been at it once, and go on."""

    def recording_and_landing() -> None:
        gateway = Spool.open(home.spool, segment_seconds=0.2)
        try:
            for at in range(ROUNDS):
                numbers = range(at * A_ROUND, (at + 1) * A_ROUND)
                for name in OTHERS if at > 1 else ("anna", *OTHERS):
                    gateway.append_sync([turn(name, number) for number in numbers])
                    gateway.append_sync([judged(name, number) for number in numbers])
                if at == 1:
                    edit = "edit of anna"
                    gateway.append_sync([judged("anna", 18, target_id=turn_id("anna", 0), kind=Kind.EDIT, text=edit)])
                    begun.wait(120)
                lands(home, elsewhere)
        finally:
            gateway.close()

    def freezing() -> list[str]:
        strict, easy = GateSettings(min_rows=4, max_age_seconds=1.0), GateSettings(min_rows=1)
        found = [freezes(home, theirs, "d0", strict)]
        begun.wait(120)
        return found + [freezes(home, theirs, f"d{at}", easy) for at in range(1, FREEZINGS)]

    try:
        with ThreadPoolExecutor(2) as pool:
            beside = [pool.submit(recording_and_landing), pool.submit(freezing)]
            begun.wait(120)
            work = Forgetting(config_of(home), folders, ours)
            asked = work.receipts.request("subject", subject("anna"))
            [receipt] = work.look(patience=60.0)
            became = [each.result() for each in beside][1]
        lands(home, elsewhere)
    finally:
        for workers in (ours, theirs, elsewhere):
            workers.close()
    assert (receipt.receipt_id, receipt.state, receipt.waits) == (asked.receipt_id, ReceiptState.COMPLETE, "")
    assert receipt.removed["turns"] == 2 * A_ROUND
    assert set(became) == {"GateFailed", "accepted"}
    assert mentions(home.root, words("anna")) == set()
    everybody = sorted(turn_id(name, number) for name in OTHERS for number in range(ROUNDS * A_ROUND))
    assert home.rows(TURNS, "turn_id") == everybody
    assert home.rows(FEEDBACK, "target_id") == everybody


def test_a_turn_that_another_lander_has_in_hand_does_not_land_behind_the_look_for_what_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be deleted there, and what others said of it, without naming anybody, would stay."""
    home, elsewhere = Home(tmp_path / "home"), Home(tmp_path / "elsewhere")
    elsewhere.lake = home.lake
    home.write(*(turn(name, number) for name in ("anna", "ben") for number in range(2)))
    elsewhere.write(judged("anna", 2))
    for each in (home, elsewhere):
        each.land()
    elsewhere.write(turn("anna", 2))
    in_hand, go = threading.Event(), threading.Event()
    commits, looks = land.commit, forget.belonging

    def commit(snapshot: DeltaTable, rows: pa.Table, *rest: Any) -> None:
        if not in_hand.is_set() and turn_id("anna", 2) in rows.to_pydict().get("turn_id", ()):
            in_hand.set()
            assert go.wait(60)
        commits(snapshot, rows, *rest)

    def belonging(*arguments: Any) -> list[tuple[str, str]]:
        found = looks(*arguments)
        if book.targets(asked.receipt_id).keys() >= {digest for _, digest in found}:  # the last look
            go.set()
            lander.join()
        return found

    monkeypatch.setattr(land, "commit", commit)
    lander = threading.Thread(target=elsewhere.land)
    lander.start()
    assert in_hand.wait(60)
    monkeypatch.setattr(forget, "belonging", belonging)
    book = Receipts(home.receipts)
    asked = book.request("subject", subject("anna"))
    assert home.erase(asked.receipt_id).settled
    assert go.is_set()
    assert mentions(home.root, words("anna")) == set()


def test_what_a_training_says_of_a_turn_when_it_fails_during_a_look_is_crossed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    folders = installed(home)
    for events in (turn, judged):
        home.write(*(events(name, number) for name in ("anna", "ben") for number in range(2)))
    home.land()
    home.freeze("d1", START + 1000)
    dataset = home.datasets / "helper" / "d1"
    write_manifest(dataset, read_manifest(dataset, DatasetManifest, CANDIDATE))
    log = folders.logs / "scheduler.log"

    def fails(folder: Path) -> bool:
        log.write_text(f"turn {turn_id('anna', 1)} is not one\n")
        return False

    monkeypatch.setattr(forgetting, "has_reader", fails)
    work = Forgetting(config_of(home), folders, Inline())  # type: ignore[arg-type]
    work.receipts.request("subject", subject("anna"))
    [receipt] = work.look(patience=10.0)
    assert (receipt.state, receipt.waits) == (ReceiptState.COMPLETE, "")
    assert receipt.removed["rows of datasets"] == 2
    assert receipt.removed["ids"] == 1
    assert mentions(home.root, words("anna")) == set()
