"""The reconciler: what the alias `champion` says becomes what the fleet serves, whatever crashes on the way.

Twice a second, for each policy: read the alias from MLflow and the desired version from control. Where they differ
and the alias's version may serve (`promotion.rules`), verify its files and make it desired; where it may not, put the
alias back on what the fleet is meant to serve, and write on the refused version why. So a person who moves the
alias in the MLflow UI promotes, and moving it back rolls back. Where they agree, the versions' rollout states follow.
A version that every engine refuses is rolled back the same way: its record says why, and it may serve no more.

It keeps nothing that it could not find again: killed at any point, the next tick goes on. MLflow or control away is
waited out, and said once. Nothing here imports MLflow.

    python -m promotion.reconcile --mlflow URL --control URL --checkpoints DIR --policy P [--policy Q]
"""

import argparse
import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from ingest.contracts.checkpoint import EXPORT, CheckpointManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import read_manifest, verify_files
from ingest.contracts.process_logs import structured
from ingest.contracts.rollout import RolloutState
from promotion import rollout
from promotion.config import PromotionSettings
from promotion.control_client import ControlClient, FleetView, wait_converged
from promotion.errors import PromotionError
from promotion.http import JsonClient
from promotion.names import TAG_OVERRIDE, TAG_REFUSED
from promotion.registry_client import ModelVersion, RegistryClient
from promotion.rules import Permission, accept, may_serve

__all__ = ["Reconciler", "main", "wait_converged"]

log = logging.getLogger("promotion.reconcile")  # also when run as __main__


class Reconciler:
    """One registry, one control process, one folder of checkpoints; `tick` brings one policy a step nearer."""

    def __init__(
        self,
        registry: RegistryClient,
        control: ControlClient,
        checkpoints: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry, self._control = registry, control
        self._checkpoints, self._clock = checkpoints.resolve(), clock
        self._verified: dict[Path, int] = {}
        self._settled: dict[str, str] = {}
        self._said: dict[str, str] = {}

    async def tick(self, policy: str) -> None:
        """Compares and acts once; raises `PromotionError` when the other side is away or refuses."""
        wanted = await self._registry.champion(policy)
        view = await self._control.view(policy)
        if wanted is None:
            return self._say(policy, "no version has the alias champion; the fleet stays as it is")
        if view.desired is None:
            return self._say(policy, "control does not know this policy yet")
        if wanted.checkpoint_id is None:
            return await self._refuse(policy, wanted, view, "its source names no checkpoint of this policy")
        checkpoint = self._checkpoints / policy / wanted.checkpoint_id
        if view.converged and wanted.checkpoint_id == view.desired == self._settled.get(policy):
            return None
        self._settled.pop(policy, None)
        granted = await asyncio.to_thread(self._judge, checkpoint, wanted.tags.get(TAG_OVERRIDE))
        if not granted.allowed:
            return await self._refuse(policy, wanted, view, granted.reason)
        self._start(checkpoint, granted)
        if TAG_REFUSED in wanted.tags:
            await self._registry.untag(policy, wanted.number, TAG_REFUSED)
        if wanted.checkpoint_id != view.desired:
            await self._control.put_desired(policy, wanted.checkpoint_id, checkpoint / EXPORT)
            return self._say(policy, f"rolling out {wanted.checkpoint_id} in place of {view.desired}: {granted.reason}")
        if not view.converged:
            return await self._watch(policy, wanted, checkpoint, view)
        rollout.move(checkpoint, RolloutState.SERVING, reason="the whole fleet reports it", now=self._clock())
        self._say(policy, f"{wanted.checkpoint_id} serves everywhere")
        self._settled[policy] = wanted.checkpoint_id
        return None

    async def _watch(self, policy: str, wanted: ModelVersion, checkpoint: Path, view: FleetView) -> None:
        """A rollout at work: taken back where all engines refuse the version, so that nobody waits for it."""
        standing = rollout.read(checkpoint)
        if standing is None or standing.state is not RolloutState.ROLLING:
            return
        refused = view.refusals(checkpoint.name)
        if not refused:
            return
        if TAG_OVERRIDE in wanted.tags:  # a person's reason lets it try once, not for ever
            await self._registry.untag(policy, wanted.number, TAG_OVERRIDE)
        why = "; ".join(f"engine {name} refused it: {error}" for name, error in sorted(refused.items()))
        taken_back = rollout.take_back(checkpoint, why, self._clock())
        await self._refuse(policy, wanted, view, f"it was {taken_back.reason}")

    def _judge(self, checkpoint: Path, override: str | None) -> Permission:
        """The rule, and the files' digests: read whole once per process and manifest."""
        granted = may_serve(checkpoint, override)
        if not granted.allowed:
            return granted
        written = (checkpoint / "manifest.json").stat().st_mtime_ns
        if self._verified.get(checkpoint) != written:
            try:
                verify_files(checkpoint, read_manifest(checkpoint, CheckpointManifest).files)
            except ContractError as error:
                return Permission(False, str(error))
            self._verified[checkpoint] = written
        return granted

    def _start(self, checkpoint: Path, granted: Permission) -> None:
        """Records that this version is the one being served now, and no other is."""
        now = self._clock()
        accept(checkpoint, granted, now)
        standing = rollout.read(checkpoint)
        if standing is None or standing.state not in rollout.IN_SERVICE:
            rollout.move(checkpoint, RolloutState.ROLLING, reason=granted.reason, now=now)
        for name, other in rollout.read_all(checkpoint.parent).items():
            if name != checkpoint.name and other.state in rollout.IN_SERVICE:
                folder = checkpoint.parent / name
                rollout.move(folder, RolloutState.RETIRED, reason=f"{checkpoint.name} took its place", now=now)

    async def _refuse(self, policy: str, refused: ModelVersion, view: FleetView, why: str) -> None:
        """Says why on the version, then puts the alias back on the last good one, unless it moved meanwhile."""
        if refused.tags.get(TAG_REFUSED) != why:
            note = f"**Refused as champion:** {why}"
            if note not in refused.description:
                await self._registry.describe(policy, refused.number, f"{refused.description}\n\n{note}".strip())
            await self._registry.tag(policy, refused.number, TAG_REFUSED, why)
        good = await self._last_good(policy, refused, view)
        now = await self._registry.champion(policy)
        if now is None or now.number != refused.number:
            return
        if good is None:
            await self._registry.drop_champion(policy)
            back = "the alias is removed, for no version that may serve is in the registry"
        else:
            await self._registry.set_champion(policy, good.number)
            back = f"the alias is back on version {good.number} ({good.checkpoint_id})"
        self._say(policy, f"version {refused.number} may not serve: {why}; {back}")

    async def _last_good(self, policy: str, refused: ModelVersion, view: FleetView) -> ModelVersion | None:
        """What serves, by the records, else by control's word, else by the engines'; or the last that did."""
        serving = rollout.newest_in(rollout.IN_SERVICE, self._checkpoints / policy)
        retired = rollout.newest_in({RolloutState.RETIRED}, self._checkpoints / policy)
        reported = [e["version"] for e in view.engines if e.get("version")]
        for checkpoint_id in (*serving, *([view.desired] if view.desired else []), *reported, *retired):
            found = await self._registry.find(policy, checkpoint_id)
            if found is not None and found.number != refused.number and checkpoint_id != refused.checkpoint_id:
                return found
        return None

    async def run(self, policies: Sequence[str], poll_seconds: float, stop: asyncio.Event) -> None:
        """Ticks until `stop` is set. Trouble with one policy never keeps the others waiting for good."""
        while not stop.is_set():
            for policy in policies:
                try:
                    await self.tick(policy)
                except (PromotionError, ContractError, OSError) as error:
                    self._settled.pop(policy, None)
                    self._say(policy, str(error), logging.WARNING)
            try:
                async with asyncio.timeout(poll_seconds):
                    await stop.wait()
            except TimeoutError:
                continue

    def _say(self, policy: str, what: str, level: int = logging.INFO) -> None:
        if self._said.get(policy) != what:
            self._said[policy] = what
            log.log(level, "%s: %s", policy, what)


async def _serve(arguments: argparse.Namespace, token: str, settings: PromotionSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    timeout = aiohttp.ClientTimeout(total=settings.request_timeout_seconds)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        registry = RegistryClient(JsonClient(session, "MLflow", arguments.mlflow))
        control = ControlClient(JsonClient(session, "control", arguments.control, token))
        reconciler = Reconciler(registry, control, arguments.checkpoints)
        await reconciler.run(arguments.policy, settings.poll_seconds, stop)


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m promotion.reconcile`; the control token comes from EVERLOOP_CONTROL_TOKEN."""
    defaults = PromotionSettings()
    parser = argparse.ArgumentParser(prog="python -m promotion.reconcile", description="registry to fleet")
    parser.add_argument("--mlflow", required=True, help="URL of the MLflow server")
    parser.add_argument("--control", required=True, help="URL of the control process")
    parser.add_argument("--checkpoints", required=True, type=Path, help="folder of all policies' checkpoints")
    parser.add_argument("--policy", required=True, action="append", help="a policy to keep converged; repeatable")
    parser.add_argument("--poll-seconds", type=float, default=defaults.poll_seconds)
    parser.add_argument("--request-timeout-seconds", type=float, default=defaults.request_timeout_seconds)
    arguments = parser.parse_args(argv)
    token = os.environ.get("EVERLOOP_CONTROL_TOKEN", "")
    if not token:
        parser.error("EVERLOOP_CONTROL_TOKEN is not set: it is the bearer token of the control process")
    settings = PromotionSettings(
        poll_seconds=arguments.poll_seconds, request_timeout_seconds=arguments.request_timeout_seconds
    )
    structured()
    asyncio.run(_serve(arguments, token, settings))


if __name__ == "__main__":
    main()
