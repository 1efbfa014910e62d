"""What an operator does outside the loop: single stages, which are recorded nowhere, and the registry's alias."""

import secrets as random
import threading
import urllib.request
from dataclasses import asdict
from pathlib import Path

from ingest.contracts.checkpoint import EXPORT
from pipelines.config import Config
from pipelines.control import Control
from pipelines.errors import PipelineError
from pipelines.home import BASE, Home
from pipelines.local import workers_of
from pipelines.stack import addresses, secrets


def train(config: Config, home: Home, policy: str, dataset: str, parent: str | None) -> dict:
    """The manifest of a new checkpoint `chand-…`, trained on `dataset` from `parent` (default: the base)."""
    folder = home.datasets / policy / dataset
    _must_exist(folder)
    origin = home.checkpoint(policy, parent or BASE)
    _must_exist(origin)
    workers = workers_of(config, home)
    try:
        return workers.call(
            "trainer",
            "trainer.stage:train",
            settings=config.policies[policy].trainer,
            policy=policy,
            dataset=folder,
            parent=origin,
            reference=home.checkpoint(policy, BASE),
            output=home.checkpoint(policy, f"chand-{random.token_hex(3)}"),
            mlflow=None,
            progress=None,
        )
    finally:
        workers.close()


def evaluate(
    config: Config, home: Home, policy: str, checkpoint: str, champion: str | None, output: Path | None
) -> dict:
    """The verdict on `checkpoint`, sampled through the running stack, in `output` (default: below `run/`)."""
    folder = home.checkpoint(policy, checkpoint)
    _must_exist(folder)
    where, keys = addresses.load(home), secrets.load_or_create(home.run / "secrets.json")
    control, settings = Control(where.control, keys.control_token), config.policies[policy]
    if champion is None:
        champion = next(p["desired"]["version"] for p in control.fleet()["policies"] if p["name"] == policy)
    control.put_under_evaluation(policy, checkpoint, folder / EXPORT)
    control.wait_evaluation_engine(policy, checkpoint, settings.schedule.engine_seconds, threading.Event())
    run_id = f"hand-{random.token_hex(3)}"
    workers = workers_of(config, home)
    try:
        return workers.call(
            "promotion",
            "evaluation.stage:evaluate",
            settings=settings.evaluation,
            policy=policy,
            run_id=run_id,
            challenger=checkpoint,
            champion=champion,
            gateway=where.gateway,
            key=keys.evaluation_key,
            look=1,
            holds=0,
            output=(output or home.evaluations / run_id).resolve(),
        )
    finally:
        workers.close()


def versions(home: Home, policy: str) -> list[dict]:
    """The policy's versions in the registry, the newest first."""
    from promotion import registry

    found = registry.versions(mlflow=mlflow_url(home), policy=policy, checkpoints=home.checkpoints)
    return [asdict(version) for version in found]


def promote(home: Home, policy: str, checkpoint: str, override: str | None) -> None:
    """Moves the alias `champion`; raises where the version may not serve and no reason overrides that."""
    from promotion import registry

    where = mlflow_url(home)
    registry.promote(
        mlflow=where, checkpoints=home.checkpoints, policy=policy, checkpoint_id=checkpoint, override=override
    )


def rollback(home: Home, policy: str, to: str | None) -> str:
    """Moves the alias back to `to`, or to what served last before; the checkpoint's id."""
    from promotion import registry

    where = mlflow_url(home)
    if to is None:
        return registry.rollback(mlflow=where, checkpoints=home.checkpoints, policy=policy)
    registry.promote(mlflow=where, checkpoints=home.checkpoints, policy=policy, checkpoint_id=to)
    return to


def mlflow_url(home: Home) -> str:
    """Its address; raises at once where it does not answer: MLflow's own client would try for minutes."""
    url = addresses.load(home).mlflow
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10):
            return url
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise PipelineError(f"MLflow does not answer at {url} ({reason}): `everloop status` tells what runs") from None


def _must_exist(folder: Path) -> None:
    if not (folder / "manifest.json").exists():
        there_are = sorted(path.parent.name for path in folder.parent.glob("*/manifest.json"))
        raise PipelineError(f"{folder} is not complete or does not exist; there are: {', '.join(there_are) or 'none'}")
