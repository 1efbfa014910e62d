"""The training stage: a frozen dataset and a parent checkpoint in, a complete checkpoint out.

    read inputs → prepare the steps → train from the parent's fp32 state → export, state, manifest

A run killed at any point and called again goes on from its last saved step (in `<output>.partial/`) and ends
with the same bytes, on the same kind of CPU. A run that failed or was stopped leaves nothing.

While it has rows of the dataset, it is its reader (`ingest.contracts.reading`): an erasure waits for the checkpoint.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from ingest.contracts.checkpoint import EXPORT, STATE, CheckpointManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import digest_of, list_files, write_manifest
from ingest.contracts.reading import reading
from trainer import loop
from trainer.checkpoints import (
    export_digest,
    is_complete,
    read_checkpoint,
    template_digest,
    tokenizer_digest,
    verify_checkpoint,
)
from trainer.config import TrainerSettings
from trainer.engine import start_engine
from trainer.errors import TrainerError
from trainer.export import write_export
from trainer.monitors import StepMetrics
from trainer.policy import open_policy
from trainer.precision import resolve
from trainer.prepare import Inputs, prepare, read_inputs
from trainer.state import Progress, Saves, read_progress, restore, write_state
from trainer.tracking import Tracker, track

Report = Callable[[dict], None]


def train(
    *,
    settings: TrainerSettings,
    policy: str,
    dataset: Path,
    parent: Path,
    reference: Path,
    output: Path,
    mlflow: str | None = None,
    progress: Report | None = None,
) -> CheckpointManifest:
    """Trains `parent` on `dataset` and writes the checkpoint `output`, whose folder name is its id.

    `parent`, `reference` (what the divergence is measured to) and `output` are folders of `checkpoints/<policy>/`.
    `progress` is called after each step with its numbers, `step` counted from 1 in this run, and `steps`. A complete
    `output` is returned as it is. Raises `TrainingStopped` where a monitor stopped the run, `TrainerError` where it
    cannot be done.
    """
    if is_complete(output):
        return read_checkpoint(output)
    settings = resolve(settings)
    torch.set_num_threads(settings.threads)
    with ExitStack() as held:
        try:
            held.enter_context(reading(dataset))
        except ContractError as error:
            raise TrainerError(f"dataset cannot be used: {error}") from error
        inputs = read_inputs(policy, dataset, parent, reference)
        saves = Saves(output.with_name(f"{output.name}.partial"), inputs.digest(settings))
        with track(mlflow, policy, output.name, inputs.dataset.dataset_id, parent.name, settings) as tracker:
            try:
                manifest = _train(settings, inputs, output, saves, tracker, progress)
            except TrainerError:
                saves.clear()
                shutil.rmtree(output, ignore_errors=True)
                raise
    saves.clear()
    return manifest


def _train(
    settings: TrainerSettings,
    inputs: Inputs,
    output: Path,
    saves: Saves,
    tracker: Tracker,
    progress: Report | None,
) -> CheckpointManifest:
    started = time.monotonic()
    plan = prepare(inputs, settings)
    prepared = time.monotonic()

    trunk_digest = export_digest(verify_checkpoint(inputs.trunk))
    saved = saves.newest()
    begin = read_progress(saved) if saved else inputs.start
    end = inputs.start.step + len(plan.steps)
    with (
        open_policy(settings, inputs.trunk / EXPORT, trunk_digest) as model,
        start_engine(model, settings.optimizer, begin.step) as engine,
    ):
        restore(saved or inputs.parent_state, model, engine.optimizer)
        history = list(begin.history)

        def at(step: int) -> Progress:
            return Progress(
                step=step,
                trunk=inputs.start.trunk,
                variance=plan.variance,
                output_tokens=plan.anchor.output_tokens,
            )

        def report(metrics: StepMetrics) -> None:
            history.append(metrics)
            done = metrics.step + 1
            if done % settings.save_every == 0 and done < end:
                saves.save(at(done), history, model, engine.optimizer)
            tracker.step(metrics)
            if progress:
                progress(asdict(metrics) | {"step": done - inputs.start.step, "steps": len(plan.steps)})

        loop.run(
            engine,
            plan.steps[begin.step - inputs.start.step :],
            settings,
            first_step=begin.step,
            anchor=plan.anchor,
            report=report,
        )
        trained = time.monotonic()
        shutil.rmtree(output, ignore_errors=True)
        realised = write_export(inputs.trunk / EXPORT, model.changed, inputs.parent_folder / EXPORT, output / EXPORT)
        write_state(output / STATE, at(end), model, engine.optimizer)

    metrics = (
        summary(history)
        | plan.metrics
        | {
            "seconds_preparing": prepared - started,
            "seconds_training": trained - prepared,
            "seconds_saving": time.monotonic() - trained,
        }
    )
    tracker.summary(metrics | {"realised_update": realised})
    return _publish(settings, inputs, output, end, metrics, realised)


def _publish(
    settings: TrainerSettings, inputs: Inputs, output: Path, step: int, metrics: dict[str, float], realised: float
) -> CheckpointManifest:
    configuration = settings.model_dump(mode="json")
    manifest = CheckpointManifest(
        checkpoint_id=output.name,
        policy=inputs.parent.policy,
        kind="full",
        parent=inputs.parent.checkpoint_id,
        created_at=time.time(),
        files=list_files(output),
        dataset_id=inputs.dataset.dataset_id,
        configuration=configuration,
        configuration_digest=digest_of(configuration),
        tokenizer_digest=tokenizer_digest(output / EXPORT),
        template_digest=template_digest(output / EXPORT),
        step=step,
        metrics=metrics,
        realised_update=realised,
    )
    write_manifest(output, manifest)
    return manifest


def summary(history: list[StepMetrics]) -> dict[str, float]:
    """A run in a few numbers: means over its steps, the last entropy and divergence, tokens a second."""
    means = {
        f"{name}_mean": float(np.mean([getattr(step, name) for step in history]))
        for name in ("loss", "reward", "kl", "effective_samples", "clipped", "gradient_norm", "entropy", "logprob_gap")
    }
    tokens = sum(step.tokens for step in history)
    return means | {
        "kl_last": history[-1].kl,
        "entropy_last": history[-1].entropy,
        "steps": len(history),
        "tokens": tokens,
        "tokens_per_second": tokens / max(sum(step.seconds for step in history), 1e-9),
    }
