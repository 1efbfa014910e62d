"""A lease: at most one holder of a name at a time, in `pipelines.db`.

A holder renews its row long before it expires; one that cannot must stop at once, for another may have taken
over. Invariant: two processes never both hold a row that has not expired.
"""

import logging
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.database import Database

log = logging.getLogger(__name__)


class Lease:
    """The lease `name`, as this process sees it. `ttl` in seconds; `clock` gives Unix seconds."""

    def __init__(self, path: Path, name: str, ttl: float, clock: Callable[[], float] = time.time) -> None:
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.ttl = ttl
        self._database, self._name, self._clock = Database(path), name, clock

    def acquire(self) -> bool:
        """Takes the lease, or renews it where it is ours; False where another holds it."""
        now = self._clock()
        with self._database.write() as db:
            row = db.execute("SELECT holder, expires_at FROM leases WHERE name = ?", (self._name,)).fetchone()
            if row and row["holder"] != self.holder and row["expires_at"] > now:
                return False
            db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", (self._name, self.holder, now + self.ttl))
            return True

    def renew(self) -> bool:
        """Extends a lease that is still ours; False where it ran out and another took it."""
        now = self._clock()
        with self._database.write() as db:
            changed = db.execute(
                "UPDATE leases SET expires_at = ? WHERE name = ? AND holder = ?",
                (now + self.ttl, self._name, self.holder),
            )
            return changed.rowcount == 1

    def release(self) -> None:
        """Gives the lease up, so that a standby need not wait for its end."""
        with self._database.write() as db:
            db.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (self._name, self.holder))

    def wait(self, stop: threading.Event) -> bool:
        """Blocks as a standby until the lease is ours (True) or `stop` is set (False)."""
        while not self.acquire():
            if stop.wait(min(1.0, self.ttl / 5)):
                return False
        return True

    def keep(self, stop: threading.Event, lost: Callable[[], None]) -> threading.Thread:
        """Renews in a thread until `stop` is set; calls `lost` once where the lease went to another."""

        def loop() -> None:
            renewed = time.monotonic()
            while not stop.wait(self.ttl / 4):
                try:
                    if not self.renew():
                        break
                    renewed = time.monotonic()
                except sqlite3.Error as error:
                    log.warning("lease %s was not renewed: %s", self._name, error)
                    if time.monotonic() - renewed > self.ttl:
                        break
            else:
                return
            lost()

        thread = threading.Thread(target=loop, name=f"lease-{self._name}", daemon=True)
        thread.start()
        return thread


def holder_of(path: Path, name: str, now: float) -> str | None:
    """Who holds the lease `name` at `now`, None where nobody does."""
    with Database(path).read() as db:
        row = db.execute("SELECT holder FROM leases WHERE name = ? AND expires_at > ?", (name, now)).fetchone()
    return row["holder"] if row else None
