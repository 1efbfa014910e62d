"""Freeze and gate as the loop runs them: in a worker, over a lake; who was refused is told where the rows are named."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest
from ingest.datasets import CANDIDATE
from pipelines.config import load
from pipelines.flow import Ended
from pipelines.home import Home
from pipelines.records import Outcome
from pipelines.runs import Runs
from pipelines.stack.addresses import Addresses
from pipelines.stack.secrets import Secrets
from pipelines.stages import LocalStages
from pipelines.workers import Workers
from tests.lakes import feedback, land, turn
from tests.unit.test_config import GOOD

pytestmark = pytest.mark.integration
NOW = 1_000_000.0
ANSWER = '{"content": "I think that the train leaves at noon, and you should be there early."}'


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[LocalStages, Home, Runs]]:
    """The stages of a policy with 40 turns of one key, of which every second one was accepted."""
    (tmp_path / "everloop.toml").write_text(GOOD)
    config = load(tmp_path / "everloop.toml", {})
    home = Home.of(config).create()
    names = [f"t{number:02}" for number in range(40)]
    fields = {"policy": "helper", "answer": ANSWER, "output_tokens": 3}
    land(home.lake, "turns", *[turn(name, finished_at=NOW - 100 + n, **fields) for n, name in enumerate(names)])
    verdicts = [feedback(name, "accept" if n % 2 else "reject", received_at=NOW - 50) for n, name in enumerate(names)]
    land(home.lake, "feedback", *verdicts)
    runs, workers = Runs(home.database), Workers(home.run / "locks")
    stages = LocalStages(
        "helper",
        config,
        home,
        Addresses(ports={"gateway": 1, "control": 2, "mlflow": 3}),
        Secrets(control_token="t", hash_secret="00", engine_token="t", webhook_secret="s"),
        runs,
        workers,
        threading.Event(),
        clock=lambda: NOW,
    )
    yield stages, home, runs
    workers.close()


def test_a_single_key_passes_the_gate_as_it_comes(made: tuple[LocalStages, Home, Runs]) -> None:
    stages, home, runs = made
    run = runs.create("helper")
    frozen = stages.freeze(run, {"cut_at": NOW, "watermark": NOW})
    assert (frozen["rows"], frozen["statistics"]["language.en"]) == (40, 1.0)
    assert stages.gate(run)["rows"] == 40
    assert all(check.passed for check in read_manifest(home.datasets / "helper" / run.dataset_id, DatasetManifest).gate)


def test_a_refused_candidate_ends_the_run_and_keeps_the_rows(made: tuple[LocalStages, Home, Runs]) -> None:
    stages, home, runs = made
    own = '[candidate.expect."polite"]\nclass = "ExpectColumnValuesToBeInSet"\ncolumn = "accepted"\nvalue_set = [1.0]'
    (home.root / "suites.toml").write_text(own)
    run = runs.create("helper")
    stages.freeze(run, {"cut_at": NOW, "watermark": NOW})
    said = rf"polite: saw 20 of 40 rows; `everloop dataset show {run.dataset_id}` names the rows"
    with pytest.raises(Ended, match=said) as ended:
        stages.gate(run)
    assert ended.value.outcome == Outcome.GATE_FAILED
    kept = read_manifest(home.datasets / "helper" / run.dataset_id, DatasetManifest, CANDIDATE)
    (refused,) = [check for check in kept.gate if not check.passed]
    assert refused.rows == tuple(f"t{number:02}" for number in range(0, 40, 2))
