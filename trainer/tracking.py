"""Curves of a run in MLflow: one MLflow run a checkpoint, taken up again where a killed run left it.

The run is found by its tag `everloop.checkpoint`, so that a restart adds to the same curves. Tracking is a
view: what shaped a checkpoint is in its manifest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from trainer.config import TrainerSettings
from trainer.monitors import StepMetrics


class Tracker(Protocol):
    """Where a run's numbers are drawn."""

    def step(self, metrics: StepMetrics) -> None:
        """One optimizer step."""

    def summary(self, metrics: dict[str, float]) -> None:
        """Numbers of the run as a whole."""


class _Nothing:
    def step(self, metrics: StepMetrics) -> None: ...

    def summary(self, metrics: dict[str, float]) -> None: ...


class _MlflowRun:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def step(self, metrics: StepMetrics) -> None:
        curves = asdict(metrics) | {"tokens_per_second": metrics.tokens / max(metrics.seconds, 1e-9)}
        self._log({name: curves[name] for name in curves if name not in ("step", "tokens")}, metrics.step)

    def summary(self, metrics: dict[str, float]) -> None:
        self._log({f"run.{name}": value for name, value in metrics.items()}, 0)

    def _log(self, values: dict[str, float], step: int) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [Metric(name, float(v), now, step) for name, v in values.items()])


@contextmanager
def track(
    uri: str | None, policy: str, checkpoint_id: str, dataset_id: str, parent: str, settings: TrainerSettings
) -> Iterator[Tracker]:
    """A tracker for one run; `uri` None draws nothing. The MLflow run ends FINISHED or FAILED with the block."""
    if uri is None:
        yield _Nothing()
        return
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    name = f"everloop/{policy}"
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    found = client.search_runs([experiment_id], f"tags.`everloop.checkpoint` = '{checkpoint_id}'", max_results=1)
    tags = {
        "everloop.policy": policy,
        "everloop.checkpoint": checkpoint_id,
        "everloop.dataset": dataset_id,
        "everloop.parent": parent,
    }
    run = found[0] if found else client.create_run(experiment_id, run_name=checkpoint_id, tags=tags)
    run_id = run.info.run_id
    client.update_run(run_id, status="RUNNING")
    if not found:
        for key, value in _flat(settings.model_dump(mode="json")).items():
            client.log_param(run_id, key, value)
    try:
        yield _MlflowRun(client, run_id)
    except BaseException:
        client.set_terminated(run_id, "FAILED")
        raise
    client.set_terminated(run_id, "FINISHED")


def _flat(values: dict, prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
