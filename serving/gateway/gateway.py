"""The parts of one gateway process, and the choices that need several of them.

`turns.py` tells what happens to a request; this holds what it happens with: the follower's view of control,
the spool, the engines' client, limits, suspicion, metrics. One `Gateway` per process.
"""

import time
from collections.abc import Sequence

import msgspec

from ingest.contracts.events import Event
from ingest.contracts.fleet import Engine, Key, Policy, Role
from ingest.contracts.ids import keyed_hash
from ingest.contracts.turn import Turn
from ingest.refused import refused_files
from ingest.spool import BrokerBehind, CommitTimeout, Spool, SpoolError, SpoolFull, damages
from serving.config import GatewaySettings
from serving.fleet.health import Suspicion
from serving.fleet.routing import choose
from serving.gateway.auth import Limits, authenticate, recheck
from serving.gateway.dialects.base import Ask
from serving.gateway.engine_client import EngineClient
from serving.gateway.errors import CaptureFailed, NotFound, TooLarge, Unavailable, VersionUnavailable
from serving.gateway.exchange import Exchange
from serving.gateway.metrics import Metrics
from serving.gateway.places import Places
from serving.gateway.redaction import Redactions
from serving.gateway.snapshot import Follower

SAMPLE_BYTES = 1 << 20
"""What one sample's tokens and text are taken to need on the spool, beside the request that is kept with them."""


class Gateway:
    """One process's gateway. `secret` keys the hashes of people and conversations."""

    def __init__(
        self,
        settings: GatewaySettings,
        secret: bytes,
        follower: Follower,
        spool: Spool,
        engines: EngineClient,
    ) -> None:
        self.settings = settings
        self.secret = secret
        self.follower = follower
        self.spool = spool
        self.engines = engines
        self.redactions = Redactions(settings.commit_seconds)
        self.limits = Limits(time.monotonic, lambda: follower.workers)
        self.suspicion = Suspicion(time.monotonic)
        self.metrics = Metrics()
        self.metrics.spool_depth.set_function(lambda: spool.depth)
        self.metrics.spool_refused.set_function(lambda: len(refused_files(spool.root)))
        self.metrics.spool_lost.set_function(lambda: sum(damage.lost_rows for damage in damages(spool.root)))
        self.metrics.revision.set_function(lambda: follower.view.revision)
        self.metrics.workers.set_function(lambda: follower.workers)
        self.places = Places(settings.max_in_flight, settings.max_in_flight_bytes)
        self.metrics.in_flight.set_function(lambda: self.places.requests)
        self.metrics.bodies.set_function(lambda: self.places.bytes)

    def authenticate(self, exchange: Exchange, *roles: Role) -> Key:
        """The caller's key, if it has one of `roles`; Anthropic's clients send it as `x-api-key`."""
        given, bare = exchange.header(b"authorization"), exchange.header(b"x-api-key")
        return authenticate(self.follower.view.keys, given or (f"Bearer {bare}" if bare else None), *roles)

    def recheck(self, key: Key) -> None:
        """To be called after each wait and before what the key allows. Raises `Unauthorized`."""
        recheck(self.follower.view.keys, key)

    def policy(self, model: str) -> Policy:
        """The policy that a model name asks for. Raises `NotFound`."""
        policies = self.follower.view.policies
        policy = policies.get(model) or policies.get(self.settings.default_policy or "")
        if policy is None:
            raise NotFound("No policy has this model name: `GET /v1/models` lists those that exist.", param="model")
        return policy

    def check_room(self, policy: Policy, ask: Ask) -> None:
        """Refuses what could not be recorded, before anything is generated; each sample keeps the request.

        Raises `TooLarge` where it never could be, `CaptureFailed` where there is no room now.
        """
        if policy.capture != "required":
            return
        size = ask.samples * (len(ask.recorded.encode()) + SAMPLE_BYTES)
        if size > self.spool.bound:
            raise TooLarge("The request, kept with each of its samples, is more than can be recorded: ask for fewer.")
        if size > self.spool.room:
            raise CaptureFailed("The spool is full: answers cannot be recorded, and are not given, until it has room.")
        if self.spool.behind:
            raise CaptureFailed("The log's broker is away: answers cannot be recorded there, and are not given.")

    def subject(self, user: str | None) -> str:
        """The keyed hash of an end user; empty where the caller names none."""
        return keyed_hash(self.secret, "subject", user) if user else ""

    async def choose_engine(
        self, key: Key, policy: str, role: str, affinity: str, version: str | None, tried: Sequence[str] = ()
    ) -> Engine:
        """The engine to ask, waiting for a ready one as long as the settings allow, and while `key` is in force.

        Raises `VersionUnavailable` at once where no engine reports `version`, `Unauthorized`, `Unavailable` after the
        wait.
        """
        deadline = time.monotonic() + self.settings.engine_wait_seconds
        while True:
            self.recheck(key)
            view = self.follower.view
            engine = choose(
                view.ready(policy, role, version),
                affinity,
                self.engines.loads,
                lambda engine_id: engine_id in tried or self.suspicion.suspected(engine_id),
            )
            if engine is not None:
                return engine
            if version is not None and all(e.version != version for e in view.engines(policy, role)):
                raise VersionUnavailable("No engine reports the version that was asked for.")
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unavailable("No engine is ready for this model: try again in a moment.")
            await self.follower.changed(left)

    async def record(self, events: Sequence[Event]) -> None:
        """Puts events on the spool; they are durable when this returns. Raises `CaptureFailed`."""
        try:
            await self.spool.append(events, self.settings.commit_seconds)
        except SpoolError as error:
            raise CaptureFailed("The answer could not be recorded, and is not given: try again.") from error

    async def commit(self, policy: Policy, turns: Sequence[Turn]) -> bool:
        """Records turns, and tells whether they are; raises `CaptureFailed` where the policy requires it."""
        recorded = [self._as_wished(turn) for turn in turns]
        if policy.redaction is not None:
            recorded = await self.redactions.turns(policy, recorded)
        try:
            await self.record(recorded)
        except CaptureFailed as error:
            self.metrics.lost(turns, _loss(error.__cause__))
            if policy.capture == "required":
                raise
            return False
        for before, after in zip(turns, recorded, strict=True):
            if before.trainable and after.untrainable_reason is not None:
                self.metrics.untrainable(policy.name, after.untrainable_reason)
        return True

    def _as_wished(self, turn: Turn) -> Turn:
        """The turn, not trainable where its subject has opted out by now."""
        if turn.subject not in self.follower.view.opted_out:
            return turn
        return msgspec.structs.replace(turn, trainable=False, untrainable_reason="opted out")


def _loss(error: BaseException | None) -> str:
    if isinstance(error, SpoolFull):
        return "spool_full"
    if isinstance(error, BrokerBehind):
        return "broker_behind"
    return "commit_timeout" if isinstance(error, CommitTimeout) else "spool_error"
