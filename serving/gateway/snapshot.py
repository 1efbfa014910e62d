"""What control says, as this gateway knows it: keys, policies, engines and opt-outs in force, indexed for requests.

`Follower` asks control every half second (ETag: an unchanged snapshot is an empty answer), keeps the last
snapshot on disk, and goes on with it while control is away: a gateway serves, and even starts, without
control. The file holds the engines' tokens, so only its owner may read it. What control revokes, or who opts out, is
so for requests that begin after the next poll: within two seconds, for a poll comes each second at least.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import aiohttp
import msgspec

from ingest.contracts.files import write_atomically
from ingest.contracts.fleet import WORKER_HEADER, WORKERS_HEADER, Engine, EngineState, Key, Policy, Snapshot
from ingest.contracts.ids import new_id
from ingest.contracts.process_logs import described

log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Snapshot).decode
PATIENCE_SECONDS = 1.0
"""How long a poll may take after one that was answered: of an answer that got lost on its way nobody hears. Twice as
long after each that was late, up to `_LONGEST_SECONDS`, for control may be slow; as long at the start."""
_LONGEST_SECONDS = 5.0
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError, OSError)
"""How a poll may fail by what control, or the way to it, does."""


class ControlUnreachable(Exception):
    """There is no snapshot to begin with: control did not answer, and none was kept from before."""


class View:
    """One snapshot, indexed. Immutable."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.revision = snapshot.revision
        self.keys: Mapping[str, Key] = MappingProxyType(
            {key.digest: key for key in snapshot.keys if key.revoked_at is None}
        )
        self.policies: Mapping[str, Policy] = MappingProxyType({policy.name: policy for policy in snapshot.policies})
        self.opted_out = frozenset(snapshot.opted_out)
        """Subjects whose turns must not be trained on."""
        engines: dict[tuple[str, str], list[Engine]] = {}
        for engine in snapshot.engines:
            engines.setdefault((engine.policy, engine.role), []).append(engine)
        self._engines = engines

    def engines(self, policy: str, role: str) -> list[Engine]:
        """Every engine of a policy in a role, in whatever state."""
        return self._engines.get((policy, role), [])

    def ready(self, policy: str, role: str, version: str | None) -> list[Engine]:
        """Those that take requests, and report `version` where one is asked for."""
        return [
            engine
            for engine in self.engines(policy, role)
            if engine.state is EngineState.READY and version in (None, engine.version)
        ]


class Follower:
    """Keeps `view` up to date. Use as `async with`; raises `ControlUnreachable` on entry."""

    def __init__(self, control: str, token: str, saved: Path, poll_seconds: float, workers: int = 1) -> None:
        """`workers` are those of this gateway, until control says how many there are in all."""
        self._url = control.rstrip("/") + "/v1/snapshot"
        self._token = token
        self._saved = saved
        self._poll_seconds = poll_seconds
        self._name = new_id("worker")
        self.workers = workers
        """How many gateway workers live, as far as control said: they share each key's limits."""
        self._told: str | None = None
        """What control said of it last."""
        self._etag = ""
        self._patience = _LONGEST_SECONDS
        self._changed = asyncio.Event()
        self._away: type[Exception] | None = None
        """How the last poll failed, if it did."""
        self.view: View

    async def __aenter__(self) -> "Follower":
        self._session = aiohttp.ClientSession(trust_env=False)
        try:
            await self._start()
        except BaseException:
            await self._session.close()
            raise
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._session.close()

    async def changed(self, seconds: float) -> None:
        """Returns when a new snapshot came in, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _start(self) -> None:
        try:
            await self._poll()
        except _NO_ANSWER as error:
            try:
                self.view = View(_decode(self._saved.read_bytes()))
            except (OSError, msgspec.MsgspecError):
                raise ControlUnreachable(
                    f"control at {self._url} did not answer ({_reason(error)}) and no snapshot was kept in "
                    f"{self._saved}: start control, or check --control and EVERLOOP_CONTROL_TOKEN"
                ) from error
            self._away = type(error)
            log.warning("control is away (%s): serving from the snapshot kept in %s", _reason(error), self._saved)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._poll()
            except Exception as error:  # noqa: BLE001 whatever it is: without another poll, revoked keys are served
                if self._away is not type(error):
                    log.warning("control is away (%s): serving from the last snapshot", _reason(error))
                self._away = type(error)
            else:
                if self._away is not None:
                    log.warning("control is back")
                self._away = None

    async def _poll(self) -> None:
        headers = {
            "authorization": f"Bearer {self._token}",
            "if-none-match": self._etag,
            WORKER_HEADER: self._name,
        }
        timeout = aiohttp.ClientTimeout(total=self._patience)
        self._patience = min(2 * self._patience, _LONGEST_SECONDS)
        async with self._session.get(self._url, headers=headers, timeout=timeout) as response:
            response.raise_for_status()
            self._count(response.headers.get(WORKERS_HEADER))
            body = await response.read()
            self._patience = PATIENCE_SECONDS
            if response.status == 304:
                return
            self.view = View(_decode(body))
            self._etag = response.headers.get("etag", "")
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        await asyncio.to_thread(self._save, body)

    def _count(self, told: str | None) -> None:
        """Takes the number of workers, where control tells one. Whatever it tells instead keeps no snapshot out."""
        if told is not None and told != self._told:
            if _NUMBER.fullmatch(told):
                self.workers = int(told)
            else:
                log.warning("what control tells is no number of workers: limits are divided by %d", self.workers)
        self._told = told

    def _save(self, body: bytes) -> None:
        try:
            write_atomically(self._saved, body, mode=0o600)
        except OSError as error:
            log.warning("the snapshot could not be kept in %s (%s): a restart would need control", self._saved, error)


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"HTTP {error.status}"
    return type(error).__name__ if isinstance(error, _NO_ANSWER) else described(error)
