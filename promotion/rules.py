"""Who may serve users: the one rule that the flow's `promote` and the reconciler both obey.

The authority is on disk, in the checkpoint's folder: its manifest, its verdict.json and its rollout.json. Tags
in the registry can be edited by anyone with the UI, and only one of them counts: `everloop.override`, a person's
reason, which is recorded before it takes effect. Nothing overrides a checkpoint that is incomplete or damaged.
"""

from dataclasses import dataclass
from pathlib import Path

from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import read_manifest
from ingest.contracts.rollout import Rollout, RolloutState
from ingest.contracts.verdict import Decision, Verdict
from promotion import rollout

_HAS_SERVED = frozenset({RolloutState.ROLLING, RolloutState.SERVING, RolloutState.RETIRED})


@dataclass(frozen=True)
class Permission:
    """Whether a version may serve, and why (not). `override` is the person's reason when it rests on one."""

    allowed: bool
    reason: str
    override: str | None = None


def permission(
    manifest: CheckpointManifest, verdict: Verdict | None, standing: Rollout | None, override: str | None
) -> Permission:
    """The rule, of values only: a verdict that promotes, the base, a version that served before, or an override."""
    if manifest.kind == "base":
        return Permission(True, "the base needs no verdict")
    if standing is not None and standing.state in _HAS_SERVED:
        return Permission(True, "it was accepted before")
    if verdict is None:
        refusal = "it was never evaluated"
    elif (verdict.policy, verdict.challenger) != (manifest.policy, manifest.checkpoint_id):
        refusal = f"its verdict is about {verdict.policy}/{verdict.challenger}"
    elif verdict.decision is Decision.PROMOTE and standing is not None and standing.state is RolloutState.REJECTED:
        refusal = f"it was {standing.reason}"
    elif verdict.decision is Decision.PROMOTE:
        return Permission(True, "; ".join(verdict.reasons))
    else:
        refusal = f"its verdict is {verdict.decision} ({'; '.join(verdict.reasons)})"
    if override and override.strip():
        return Permission(True, f"overridden by a person, though {refusal}", override.strip())
    return Permission(False, refusal)


def read_verdict(checkpoint: Path) -> Verdict | None:
    """The verdict in a checkpoint's folder, None before its evaluation."""
    return read_manifest(checkpoint, Verdict, "verdict.json") if (checkpoint / "verdict.json").exists() else None


def may_serve(checkpoint: Path, override: str | None) -> Permission:
    """The rule on a checkpoint's folder, whose name and parent's name must be its manifest's."""
    try:
        manifest = read_manifest(checkpoint, CheckpointManifest)
        if (manifest.policy, manifest.checkpoint_id) != (checkpoint.parent.name, checkpoint.name):
            return Permission(False, f"its folder holds checkpoint {manifest.policy}/{manifest.checkpoint_id}")
        return permission(manifest, read_verdict(checkpoint), rollout.read(checkpoint), override)
    except ContractError as error:
        return Permission(False, str(error))


def accept(checkpoint: Path, granted: Permission, now: float) -> None:
    """Records that a version may serve, unless the record says so already; the override with its reason first."""
    standing = rollout.read(checkpoint)
    if standing is None:
        rollout.move(checkpoint, RolloutState.REGISTERED, reason="registered", now=now)
    if standing is None or standing.state not in _HAS_SERVED | {RolloutState.ACCEPTED}:
        rollout.move(checkpoint, RolloutState.ACCEPTED, reason=granted.reason, now=now, overridden_by=granted.override)
