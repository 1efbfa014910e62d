"""The model registry: every checkpoint a version, its verdict and report on it, and the alias that people move.

MLflow holds what people look at; the checkpoint's folder holds what counts (`promotion.rules`). No weights are
copied: a version's source names its checkpoint. Each function may be called again after a kill at any point.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.files import digest_of, read_manifest
from ingest.contracts.rollout import RolloutState
from ingest.contracts.verdict import Decision
from promotion import rollout
from promotion.errors import PromotionError, PromotionRefused
from promotion.evidence import log_evaluation
from promotion.names import (
    CHALLENGER,
    CHAMPION,
    TAG_CHECKPOINT,
    TAG_DECISION,
    TAG_ERASED,
    TAG_EVALUATION_RUN,
    TAG_OVERRIDE,
    TAG_VERDICT_DIGEST,
    checkpoint_of,
    source_of,
)
from promotion.rules import accept, may_serve, read_verdict
from promotion.summary import describe

_STATE_OF = {
    Decision.PROMOTE: RolloutState.ACCEPTED,
    Decision.CANARY: RolloutState.HELD,
    Decision.HOLD: RolloutState.HELD,
    Decision.REJECT: RolloutState.REJECTED,
}

Clock = Callable[[], float]


@dataclass(frozen=True)
class RegisteredVersion:
    """One version as the registry has it; `state` is None where the checkpoints were not asked for or are gone."""

    number: int
    checkpoint_id: str
    decision: str
    aliases: tuple[str, ...]
    override: str
    created_at: float
    state: str | None


def _client(mlflow: str) -> MlflowClient:
    return MlflowClient(tracking_uri=mlflow, registry_uri=mlflow)


@contextmanager
def _asking(mlflow: str) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        raise PromotionError(f"the registry at {mlflow} refused or is away: {error.message}") from error


def _all(client: MlflowClient, policy: str) -> list[ModelVersion]:
    found: list[ModelVersion] = []
    token: str | None = None
    while True:
        page = client.search_model_versions(f"name='{policy}'", max_results=200, page_token=token)
        found += page
        token = page.token
        if not token:
            return sorted((v for v in found if checkpoint_of(policy, v.source)), key=lambda v: int(v.version))


def _find(client: MlflowClient, policy: str, checkpoint_id: str) -> ModelVersion | None:
    found = client.search_model_versions(f"name='{policy}' and source_path='{source_of(policy, checkpoint_id)}'")
    return min(found, key=lambda v: int(v.version), default=None)


def _get(client: MlflowClient, policy: str, checkpoint_id: str) -> ModelVersion:
    found = _find(client, policy, checkpoint_id)
    if found is None:
        raise PromotionError(f"{policy}/{checkpoint_id} is not in the registry: `everloop versions` lists what is")
    return found


def _by_alias(client: MlflowClient, policy: str, alias: str) -> ModelVersion | None:
    try:
        return client.get_model_version_by_alias(policy, alias)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST" or "not found" in str(error.message):
            return None
        raise


def register(*, mlflow: str, checkpoint: Path, clock: Clock = time.time) -> int:
    """The model version that is this checkpoint, made if it is not there; `challenger` points at it unless a base.

    A parent that learned from what was erased since passes its tag on: whoever tags descendants looks for them first,
    and again afterwards, so that none is missed.
    Raises `ContractError` for an incomplete checkpoint, `PromotionError` when the registry is away.
    """
    manifest = read_manifest(checkpoint, CheckpointManifest)
    policy, checkpoint_id = manifest.policy, manifest.checkpoint_id
    if rollout.read(checkpoint) is None:
        rollout.move(checkpoint, RolloutState.REGISTERED, reason="registered", now=clock())
    with _asking(mlflow):
        client = _client(mlflow)
        version = _find(client, policy, checkpoint_id)
        if version is None:
            try:
                client.create_registered_model(policy)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            parent = _find(client, policy, manifest.parent) if manifest.parent else None
            inherited = {name: value for name, value in parent.tags.items() if name == TAG_ERASED} if parent else {}
            client.create_model_version(
                policy,
                source_of(policy, checkpoint_id),
                tags={TAG_CHECKPOINT: checkpoint_id, **inherited},
                description=describe(manifest, None),
            )
            version = _get(client, policy, checkpoint_id)
        if manifest.kind != "base" and read_verdict(checkpoint) is None:
            client.set_registered_model_alias(policy, CHALLENGER, str(version.version))
        return int(version.version)


def record_verdict(*, mlflow: str, checkpoint: Path, clock: Clock = time.time) -> str:
    """Puts the verdict in the checkpoint's folder, and its report, on the checkpoint's model version.

    The report's files become artifacts of an MLflow run that the version's description links; returns the run's id.
    Raises `PromotionError` where there is no verdict.
    """
    manifest, verdict = read_manifest(checkpoint, CheckpointManifest), read_verdict(checkpoint)
    if verdict is None:
        raise PromotionError(f"{checkpoint} has no verdict.json: evaluate it first")
    standing = rollout.read(checkpoint)
    if standing is None or standing.state is RolloutState.REGISTERED:
        register(mlflow=mlflow, checkpoint=checkpoint, clock=clock)
        rollout.move(checkpoint, _STATE_OF[verdict.decision], reason="; ".join(verdict.reasons), now=clock())
    with _asking(mlflow):
        client = _client(mlflow)
        version = _get(client, manifest.policy, manifest.checkpoint_id)
        digest = digest_of(verdict)
        if version.tags.get(TAG_VERDICT_DIGEST) == digest:
            return version.tags[TAG_EVALUATION_RUN]
        experiment, run_id = log_evaluation(client, verdict, digest, checkpoint)
        number = str(version.version)
        client.update_model_version(
            manifest.policy, number, describe(manifest, verdict, link=f"#/experiments/{experiment}/runs/{run_id}")
        )
        client.set_model_version_tag(manifest.policy, number, TAG_DECISION, str(verdict.decision))
        client.set_model_version_tag(manifest.policy, number, TAG_EVALUATION_RUN, run_id)
        if verdict.decision is Decision.REJECT:
            _drop_challenger(client, manifest.policy, version)
        client.set_model_version_tag(manifest.policy, number, TAG_VERDICT_DIGEST, digest)
        return run_id


def _drop_challenger(client: MlflowClient, policy: str, version: ModelVersion) -> None:
    current = _by_alias(client, policy, CHALLENGER)
    if current is not None and current.version == version.version:
        client.delete_registered_model_alias(policy, CHALLENGER)


def promote(
    *,
    mlflow: str,
    checkpoints: Path,
    policy: str,
    checkpoint_id: str,
    override: str | None = None,
    clock: Clock = time.time,
) -> int:
    """Moves the alias `champion` to a checkpoint, and returns its model version; the reconciler does the rest.

    `checkpoints` is the folder of all policies' checkpoints. `override` is a person's reason to promote what its
    gate did not; it is written on the version. Raises `PromotionRefused` with the rule's reason.
    """
    checkpoint = checkpoints / policy / checkpoint_id
    with _asking(mlflow):
        client = _client(mlflow)
        version = _get(client, policy, checkpoint_id)
        number = str(version.version)
        if override and override.strip():
            client.set_model_version_tag(policy, number, TAG_OVERRIDE, override.strip())
        granted = may_serve(checkpoint, (override or "").strip() or version.tags.get(TAG_OVERRIDE))
        if not granted.allowed:
            raise PromotionRefused(
                f"{policy}/{checkpoint_id} may not serve: {granted.reason}; a person may override it with a reason"
            )
        accept(checkpoint, granted, clock())
        client.set_registered_model_alias(policy, CHAMPION, number)
        _drop_challenger(client, policy, version)
        return int(number)


def rollback(*, mlflow: str, checkpoints: Path, policy: str) -> str:
    """Promotes the nearest ancestor of the present champion that served; returns its checkpoint id.

    By descent, not by time: a second rollback goes one further back, never to what the first one took back.
    """
    states = rollout.read_all(checkpoints / policy)
    at = champion(mlflow=mlflow, policy=policy)
    while at is not None and (checkpoints / policy / at / "manifest.json").exists():
        at = read_manifest(checkpoints / policy / at, CheckpointManifest).parent
        if at is not None and at in states and states[at].state is RolloutState.RETIRED:
            promote(mlflow=mlflow, checkpoints=checkpoints, policy=policy, checkpoint_id=at)
            return at
    raise PromotionError(f"no version of {policy} served before the present champion: there is nothing to go back to")


def champion(*, mlflow: str, policy: str) -> str | None:
    """The checkpoint id that the alias `champion` points at, None before the first promotion."""
    with _asking(mlflow):
        version = _by_alias(_client(mlflow), policy, CHAMPION)
    return None if version is None else checkpoint_of(policy, version.source)


def versions(*, mlflow: str, policy: str, checkpoints: Path | None = None) -> list[RegisteredVersion]:
    """All versions of a policy, the newest first; with `checkpoints`, where each stands in its rollout."""
    with _asking(mlflow):
        client = _client(mlflow)
        found = _all(client, policy)
        aliases = client.get_registered_model(policy).aliases if found else {}
    states = rollout.read_all(checkpoints / policy) if checkpoints is not None else {}
    return [
        RegisteredVersion(
            number=int(v.version),
            checkpoint_id=(name := checkpoint_of(policy, v.source) or ""),
            decision=v.tags.get(TAG_DECISION, ""),
            aliases=tuple(sorted(a for a, number in aliases.items() if str(number) == str(v.version))),
            override=v.tags.get(TAG_OVERRIDE, ""),
            created_at=v.creation_timestamp / 1000,
            state=str(states[name].state) if name in states else None,
        )
        for v in reversed(found)
    ]
