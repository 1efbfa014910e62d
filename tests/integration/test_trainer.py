"""The training stage on a tiny model with DeepSpeed: complete checkpoints, lineage, resumption, and stops."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ingest.contracts.checkpoint import EXPORT, STATE
from ingest.contracts.files import verify_files
from ingest.contracts.reading import has_reader
from tests.tiny_policy import CUT_AT, POLICY, Place, make_dataset, make_place, make_source
from trainer.__main__ import main
from trainer.checkpoints import checkpoint_digest, import_model, read_checkpoint, retain
from trainer.config import LoraSettings, LossSettings, MonitorSettings, OptimizerSettings, TrainerSettings
from trainer.errors import TrainerError, TrainingStopped
from trainer.stage import train

pytestmark = pytest.mark.integration

SETTINGS = TrainerSettings(
    lora=LoraSettings(rank=8, alpha=16),
    optimizer=OptimizerSettings(learning_rate=1e-2),
    minibatch=8,
    save_every=2,
    monitors=MonitorSettings(entropy=0.01),
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def run(place: Place, dataset: str, parent: str, output: str, settings: TrainerSettings = SETTINGS, **more):
    return train(
        settings=settings,
        policy=POLICY,
        dataset=place.dataset(dataset),
        parent=place.checkpoints / parent,
        reference=place.base,
        output=place.checkpoints / output,
        **more,
    )


def test_a_run_writes_a_complete_checkpoint(place):
    make_dataset(place.dataset("d1"), place.base)
    steps: list[dict] = []
    readers: list[bool] = []

    def progress(step: dict) -> None:
        steps.append(step)
        readers.append(has_reader(place.dataset("d1")))

    manifest = run(place, "d1", "base", "c1", progress=progress)
    assert (set(readers), has_reader(place.dataset("d1"))) == ({True}, False), "an erasure waits for who trains"

    folder = place.checkpoints / "c1"
    verify_files(folder, manifest.files)
    assert (manifest.kind, manifest.parent, manifest.dataset_id, manifest.step) == ("full", "base", "d1", 6)
    assert manifest.tokenizer_digest == read_checkpoint(place.base).tokenizer_digest
    assert 0 < manifest.realised_update < 1
    assert manifest.metrics["gap_mean"] < 0.01
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert {step["steps"] for step in steps} == {6}
    assert not (place.checkpoints / "c1.partial").exists()

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / EXPORT / name).read_bytes() == (place.base / EXPORT / name).read_bytes()
    exported, before = (load_file(p / EXPORT / "model.safetensors") for p in (folder, place.base))
    assert {n: (t.dtype, t.shape) for n, t in exported.items()} == {n: (t.dtype, t.shape) for n, t in before.items()}
    changed = {name for name in exported if not torch.equal(exported[name], before[name])}
    assert changed
    assert all(name.split(".")[-2] in ("q_proj", "k_proj", "v_proj", "o_proj") for name in changed)

    digest = checkpoint_digest(manifest)
    assert run(place, "d1", "base", "c1") == manifest, "a complete output is returned as it is"
    assert checkpoint_digest(run(place, "d1", "base", "c1-again")) == digest, "the same inputs give the same bytes"


def test_the_export_behaves_as_the_trained_policy(place):
    """A dataset sampled from the export, scored by the next run that starts from the fp32 state."""
    make_dataset(place.dataset("d1"), place.base)
    run(place, "d1", "base", "c1")
    make_dataset(place.dataset("d2"), place.checkpoints / "c1", seed=1)
    steps: list[dict] = []
    manifest = run(place, "d2", "c1", "c2", progress=steps.append)
    assert manifest.metrics["gap_mean"] < 0.01
    assert steps[0]["logprob_gap"] < 0.05


def test_the_next_run_goes_on_from_the_fp32_state(place):
    make_dataset(place.dataset("d1"), place.base)
    run(place, "d1", "base", "c1")
    make_dataset(place.dataset("d2"), place.checkpoints / "c1", seed=1)
    manifest = run(place, "d2", "c1", "c2")
    assert manifest.step == 12
    first, second = (json.loads((place.checkpoints / c / STATE / "state.json").read_text()) for c in ("c1", "c2"))
    assert first["trunk"] == second["trunk"] == "base"
    assert first["variance"] != second["variance"]
    tensors = load_file(place.checkpoints / "c2" / STATE / "state.safetensors")
    assert {t.dtype for name, t in tensors.items() if name != "rng"} == {torch.float32}


def test_rewarded_tokens_become_likely(place):
    """Several cycles, each on the last checkpoint's own answers, raise the share of rewarded tokens."""
    rewards, parent = [], "base"
    for cycle in range(4):
        make_dataset(place.dataset(f"d{cycle}"), place.checkpoints / parent, rows=64, seed=cycle)
        rewards.append(run(place, f"d{cycle}", parent, f"c{cycle}").metrics["reward_mean"])
        parent = f"c{cycle}"
    assert rewards[-1] > rewards[0] + 0.25


def test_full_weights_train_and_resume_too(place):
    settings = SETTINGS.model_copy(update={"weights": "full", "optimizer": OptimizerSettings(learning_rate=1e-3)})
    make_dataset(place.dataset("d1"), place.base)
    run(place, "d1", "base", "c1", settings)
    make_dataset(place.dataset("d2"), place.checkpoints / "c1", seed=1)
    manifest = run(place, "d2", "c1", "c2", settings)
    assert manifest.realised_update > 0.5
    with pytest.raises(TrainerError, match="other adapters"):
        run(place, "d2", "c1", "c3", SETTINGS)


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("served", ["bfloat16", "float32"])
@pytest.mark.parametrize("weights", ["lora", "full"])
def test_engine_and_trainer_may_compute_differently(place, weights, served, compute):
    """Rounding stays far below the gap's bound, and the manifest has the arithmetic that was used."""
    settings = SETTINGS.model_copy(update={"compute_dtype": compute, "weights": weights})
    make_dataset(place.dataset("d1"), place.base, rows=16, dtype=served)
    steps: list[dict] = []
    manifest = run(place, "d1", "base", "c1", settings, progress=steps.append)
    assert manifest.configuration["compute_dtype"] == compute
    assert manifest.metrics["gap_mean"] < 0.02
    assert steps[0]["logprob_gap"] < 0.02
    assert {t.dtype for t in load_file(place.checkpoints / "c1" / EXPORT / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_auto_is_resolved_before_it_is_written(place):
    make_dataset(place.dataset("d1"), place.base)
    auto = run(place, "d1", "base", "auto")
    dtype = auto.configuration["compute_dtype"]
    assert dtype in ("bfloat16", "float32")
    named = run(place, "d1", "base", "named", SETTINGS.model_copy(update={"compute_dtype": dtype}))
    assert named.configuration_digest == auto.configuration_digest
    assert checkpoint_digest(named) == checkpoint_digest(auto)


def test_parts_add_up_to_the_same_step(place):
    make_dataset(place.dataset("d1"), place.base)
    whole = run(place, "d1", "base", "whole")
    cut = run(place, "d1", "base", "cut", SETTINGS.model_copy(update={"forward_tokens": 24}))
    a, b = (load_file(place.checkpoints / m.checkpoint_id / STATE / "state.safetensors") for m in (whole, cut))
    weights = [name for name in a if name.startswith("weights/")]
    distance = sum(float((a[n] - b[n]).norm()) for n in weights)
    length = sum(float(a[n].norm()) for n in weights)
    assert distance < 0.05 * length, "they differ by rounding only"


_KILLED_AT = """
import os, signal, sys
from pathlib import Path
from trainer.config import TrainerSettings
from trainer.stage import train

def kill(step):
    if step["step"] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

root = Path(sys.argv[1])
train(settings=TrainerSettings.model_validate_json(sys.argv[2]), policy=root.name, dataset=Path(sys.argv[4]),
      parent=root / "base", reference=root / "base", output=root / "killed", progress=kill)
"""


@pytest.mark.parametrize(("killed_at", "first"), [(1, 1), (5, 5)])
def test_a_killed_run_ends_with_the_same_bytes(place, killed_at, first):
    """Killed before the first save it starts again; killed after the save at step 4 it goes on with step 5."""
    make_dataset(place.dataset("d1"), place.base)
    undisturbed = run(place, "d1", "base", "undisturbed")
    command = [sys.executable, "-c", _KILLED_AT, place.checkpoints, SETTINGS.model_dump_json(), killed_at]
    killed = subprocess.run([*map(str, command), str(place.dataset("d1"))], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (place.checkpoints / "killed" / "manifest.json").exists()

    steps: list[dict] = []
    resumed = run(place, "d1", "base", "killed", progress=steps.append)
    assert steps[0]["step"] == first
    assert checkpoint_digest(resumed) == checkpoint_digest(undisturbed)
    assert resumed.metrics["steps"] == 6


def test_the_command_trains_and_says_why_not(place, monkeypatch, capsys):
    make_dataset(place.dataset("d1"), place.base)
    settings = place.root / "settings.json"
    settings.write_text(SETTINGS.model_dump_json())
    arguments = ["trainer", "--dataset", place.dataset("d1"), "--reference", place.base, "--settings", settings,
                 "--output", place.checkpoints / "c1"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [*map(str, arguments), "--parent", str(place.base)])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["checkpoint_id"] == "c1"
    monkeypatch.setattr(sys, "argv", [*map(str, arguments), "--parent", str(place.checkpoints / "nowhere")])
    assert main() == 1
    assert "was never completed" in capsys.readouterr().err


def test_foreign_logprobs_stop_the_run_and_nothing_is_published(place, tmp_path):
    other = make_place(tmp_path / "other", seed=9)
    make_dataset(place.dataset("foreign"), other.base, version="base")
    with pytest.raises(TrainingStopped, match="version base") as stopped:
        run(place, "foreign", "base", "c1")
    assert stopped.value.monitor == "gap"
    assert not list(place.checkpoints.glob("c1*"))


def test_stale_and_unknown_rows_are_left_out_or_stop_the_run(place):
    make_dataset(place.dataset("unknown"), place.base, version="never-heard-of")
    with pytest.raises(TrainingStopped) as stopped:
        run(place, "unknown", "base", "c1")
    assert stopped.value.monitor == "staleness"
    make_dataset(place.dataset("old"), place.base, finished_at=CUT_AT - 30 * 86400)
    with pytest.raises(TrainingStopped):
        run(place, "old", "base", "c1")


def test_a_monitor_stops_a_run_in_the_middle_and_nothing_stays(place):
    make_dataset(place.dataset("d1"), place.base)
    settings = SETTINGS.model_copy(
        update={"monitors": MonitorSettings(kl=1e-4), "optimizer": OptimizerSettings(learning_rate=0.05)}
    )
    with pytest.raises(TrainingStopped) as stopped:
        run(place, "d1", "base", "c1", settings)
    assert stopped.value.monitor == "kl"
    assert not list(place.checkpoints.glob("c1*"))
    assert run(place, "d1", "base", "c1").step == 6, "the process goes on to the next run"


def test_an_update_lost_in_rounding_is_an_error(place):
    make_dataset(place.dataset("d1"), place.base)
    settings = SETTINGS.model_copy(update={"optimizer": OptimizerSettings(learning_rate=1e-12)})
    with pytest.raises(TrainerError, match="lost in rounding"):
        run(place, "d1", "base", "c1", settings)
    assert not list(place.checkpoints.glob("c1*"))


def test_equal_rewards_stop_the_run(place):
    make_dataset(place.dataset("d1"), place.base, reward=lambda ids: 0.75)
    with pytest.raises(TrainingStopped, match=r"all 48 rewards are 0\.75"):
        run(place, "d1", "base", "c1")


def test_damaged_data_is_refused(place):
    make_dataset(place.dataset("d1"), place.base)
    path = place.dataset("d1") / "rows.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TrainerError, match="damaged"):
        run(place, "d1", "base", "c1")


def test_an_untied_model_trains(tmp_path):
    place = make_place(tmp_path, tied=False)
    make_dataset(place.dataset("d1"), place.base)
    settings = SETTINGS.model_copy(
        update={"loss": LossSettings(name="ppo_clip", low=0.2, high=0.2), "optimizer": OptimizerSettings()}
    )
    assert run(place, "d1", "base", "c1", settings).realised_update > 0


@pytest.mark.parametrize("name", ["decoupled_ppo", "kto"])
def test_the_proximal_policy_is_the_fp32_state_that_a_run_starts_from(place, name):
    """Not the export of it, and not what the rows were sampled from: the first step has not moved from it."""
    make_dataset(place.dataset("d1"), place.base)
    run(place, "d1", "base", "c1")
    loss = LossSettings(name=name, normalize="sequence")
    settings = SETTINGS.model_copy(update={"loss": loss, "monitors": MonitorSettings(entropy=0.01, clipped=1.0)})
    make_dataset(place.dataset("d2"), place.base)
    seen = []
    manifest = run(place, "d2", "c1", "c2", settings, progress=seen.append)
    assert manifest.realised_update > 0
    assert seen[0]["logprob_gap"] > 1e-4, "the rows are of other weights"
    if name == "decoupled_ppo":
        assert seen[0]["clipped"] == 0.0
        assert seen[-1]["clipped"] > 0.0


def test_curves_go_to_mlflow(place):
    from mlflow import MlflowClient

    uri = f"sqlite:///{place.root}/mlflow.db"
    make_dataset(place.dataset("d1"), place.base)
    run(place, "d1", "base", "c1", mlflow=uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(f"everloop/{POLICY}")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["everloop.dataset"] == "d1"
    assert found.data.params["loss.name"] == "cispo"
    assert len(client.get_metric_history(found.info.run_id, "kl")) == 6
    assert found.data.metrics["run.realised_update"] > 0


def test_a_base_is_imported_once(tmp_path):
    place = make_place(tmp_path)
    first = read_checkpoint(place.base)
    other = make_source(tmp_path / "other", seed=5)
    assert import_model(other, place.root / "checkpoints", POLICY) == first
    assert (first.checkpoint_id, first.kind, first.parent) == ("base", "base", None)
    with pytest.raises(TrainerError, match="not a Hugging Face model folder"):
        import_model(tmp_path / "nowhere", place.root / "elsewhere", POLICY)


def test_retention_keeps_ancestors_of_what_is_kept(place):
    parent = "base"
    for cycle in range(3):
        make_dataset(place.dataset(f"d{cycle}"), place.checkpoints / parent, seed=cycle)
        run(place, f"d{cycle}", parent, f"c{cycle}")
        parent = f"c{cycle}" if cycle != 1 else "c0"
    assert read_checkpoint(place.checkpoints / "c2").parent == "c0"
    assert retain(place.checkpoints, {"c2"}, 0) == ["c1"]
    assert {p.name for p in place.checkpoints.iterdir()} == {"base", "c0", "c2"}
    assert retain(place.checkpoints, set(), 1) == []
