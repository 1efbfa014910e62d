"""Where each version stands: `checkpoints/<policy>/<checkpoint_id>/rollout.json`, written atomically.

Every change goes through the table in `ingest/contracts/rollout.py`, under a lock per policy: the flow and the
reconciler both move versions. A state that is already there is no change, so whatever was killed between two
steps may repeat both.
"""

import fcntl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.files import decode_manifest, write_atomically
from ingest.contracts.rollout import Rollout, RolloutState, advance

FILE = "rollout.json"
IN_SERVICE = frozenset({RolloutState.ROLLING, RolloutState.SERVING})
"""It serves, or is on its way to."""


def read(checkpoint: Path) -> Rollout | None:
    """The rollout of one checkpoint folder, None when it was never registered."""
    path = checkpoint / FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode_manifest(data, Rollout, path)


def read_all(policy_folder: Path) -> dict[str, Rollout]:
    """Rollouts of a policy's checkpoints, by checkpoint id."""
    found = ((p.parent.name, read(p.parent)) for p in sorted(policy_folder.glob(f"*/{FILE}")))
    return {name: rollout for name, rollout in found if rollout is not None}


def newest_in(states: Collection[RolloutState], policy_folder: Path) -> list[str]:
    """Checkpoint ids of a policy's versions in one of these states, the one that moved last first."""
    found = [rollout for rollout in read_all(policy_folder).values() if rollout.state in states]
    return [rollout.checkpoint_id for rollout in sorted(found, key=lambda rollout: -rollout.updated_at)]


@contextmanager
def _locked(policy_folder: Path) -> Iterator[None]:
    with (policy_folder / ".rollout.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def take_back(checkpoint: Path, why: str, now: float) -> Rollout:
    """Ends a rollout that came to nothing, and returns what stands then: one that serves by now serves on.

    The record is what counts: the reconciler puts the alias back on the version before.
    """
    try:
        return move(checkpoint, RolloutState.REJECTED, reason=f"rolled back: {why}", now=now)
    except ContractError:
        standing = read(checkpoint)
        if standing is None:
            raise
        return standing


def move(checkpoint: Path, to: RolloutState, *, reason: str, now: float, overridden_by: str | None = None) -> Rollout:
    """Moves a checkpoint to a state, and returns what stands then; raises `ContractError` where the table forbids it.

    A first record may only be `registered`. `overridden_by` stays once it was set.
    """
    with _locked(checkpoint.parent):
        before = read(checkpoint)
        if before is None and to is not RolloutState.REGISTERED:
            raise ContractError(f"{checkpoint.name} is not registered, it cannot become {to}")
        if before is not None:
            if before.state is to:
                return before
            advance(before.state, to)
        after = Rollout(
            policy=checkpoint.parent.name,
            checkpoint_id=checkpoint.name,
            state=to,
            updated_at=now,
            reason=reason,
            overridden_by=overridden_by or (before.overridden_by if before else None),
        )
        write_atomically(checkpoint / FILE, msgspec.json.format(msgspec.json.encode(after), indent=1) + b"\n")
        return after
