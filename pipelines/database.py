"""`pipelines.db`: the schema, and short transactions on it from any thread of any process.

A connection stays open per thread: where each call opened its own, the last to close would write the whole log back
to the file and sync it, every time.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, policy TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
    started_at REAL NOT NULL, updated_at REAL NOT NULL, finished_at REAL, outcome TEXT,
    reason TEXT NOT NULL DEFAULT '', UNIQUE (policy, number));
CREATE TABLE IF NOT EXISTS stages (
    run_id TEXT NOT NULL REFERENCES runs, stage TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
    started_at REAL NOT NULL, finished_at REAL, result TEXT NOT NULL DEFAULT '{}',
    progress TEXT NOT NULL DEFAULT '{}', error TEXT NOT NULL DEFAULT '', PRIMARY KEY (run_id, stage));
CREATE TABLE IF NOT EXISTS requests (policy TEXT PRIMARY KEY, requested_at REAL NOT NULL, min_turns INTEGER);
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_at REAL NOT NULL);
"""


class Database:
    """The database at `path`, made with its tables where it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        path.parent.mkdir(parents=True, exist_ok=True)
        db = self._connection()
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_SCHEMA)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which waits for other writers; rolled back where the block raises."""
        db = self._connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view, which waits for nobody."""
        db = self._connection()
        db.execute("BEGIN")
        try:
            yield db
        finally:
            db.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "db"):
            self._local.db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            self._local.db.row_factory = sqlite3.Row
        return self._local.db
