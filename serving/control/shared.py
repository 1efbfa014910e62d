"""What control's handlers share: the database, who may call, the snapshot, and the sweep for lost engines."""

import hmac
import logging
import threading
import time
from collections.abc import Callable

from fastapi import Request

from ingest.contracts.fleet import Snapshot
from serving.config import ControlSettings
from serving.control import engines, keys, policies, subjects
from serving.control.database import Database, bump
from serving.control.errors import TooLarge
from serving.control.tables import RevisionRow

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 16 << 20


class LiveWorkers:
    """Which gateway workers live: those that asked for the snapshot lately. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], lost_seconds: float) -> None:
        self._clock = clock
        self._lost_seconds = lost_seconds
        self._started = clock()
        self._at: dict[str, float] = {}
        self._lock = threading.Lock()

    def heard(self, worker: str) -> int | None:
        """The worker has just asked. How many live; None so soon after a start that some may not have asked yet."""
        with self._lock:
            now = self._clock()
            self._at[worker] = now
            self._at = {name: at for name, at in self._at.items() if at > now - self._lost_seconds}
            return len(self._at) if now - self._started >= self._lost_seconds else None


class Control:
    """What the handlers share."""

    def __init__(self, database: Database, token: str, settings: ControlSettings) -> None:
        self.database = database
        self.settings = settings
        self.seen = engines.LastSeen(time.time)
        self.workers = LiveWorkers(time.monotonic, settings.lost_seconds)
        self._token = token.encode()

    def admits(self, authorization: str | None) -> bool:
        """Whether the header carries the bearer token."""
        return hmac.compare_digest((authorization or "").encode(), b"Bearer " + self._token)

    def snapshot(self) -> Snapshot:
        """All that a gateway needs."""
        with self.database.read() as session:
            revision = session.get_one(RevisionRow, 1).value
            return Snapshot(
                revision=revision,
                keys=tuple(key for key in keys.every(session) if key.revoked_at is None),
                policies=tuple(policies.every(session)),
                engines=tuple(engines.every(session)),
                opted_out=tuple(row.subject for row in subjects.every(session)),
            )

    def sweep(self) -> None:
        """Marks silent engines as lost."""
        before = time.time() - self.settings.lost_seconds
        with self.database.write(changes_snapshot=False) as session:
            lost = engines.mark_lost(session, self.seen, before)
            if lost:
                bump(session)
        for engine_id in lost:
            log.warning("engine %s is lost: no heartbeat for %s s", engine_id, self.settings.lost_seconds)


def the_control(request: Request) -> Control:
    """The process's `Control`."""
    control: Control = request.app.state.control
    return control


async def the_body(request: Request) -> bytes:
    """The request's body, bounded."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"The body is above {MAX_BODY_BYTES} bytes.")
        parts.append(part)
    return b"".join(parts)
