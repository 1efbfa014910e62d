"""Receipts: what was asked to be forgotten, how far that is, and what is still waited for.

A small SQLite database, `receipts.db`. It knows digests (`ingest.contracts.erasure`), never a name or a pseudonym. Each
call is one short transaction. What a receipt is to remove are its targets: the subject or session that was named, and
the turns and sessions that were found to belong to it. A target is written here before its erasure is filed on the log.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from ingest.contracts.erasure import Erasure, erasure_digest


class ReceiptState(StrEnum):
    """Where a receipt stands."""

    REQUESTED = "requested"
    """Asked for; its erasure may not be on the log yet."""
    FILED = "filed"
    """Its erasure is on the log; the lake may not know it yet."""
    REMOVING = "removing"
    """The lake lets nothing more in, and what can be reached is removed at each look. Some spool may still hold it."""
    RETAINED = "retained"
    """Removed wherever it can be; Kafka keeps its records until their retention has passed."""
    COMPLETE = "complete"
    """Nothing holds it any more."""


S = ReceiptState
RECEIPT_TRANSITIONS: dict[ReceiptState, frozenset[ReceiptState]] = {
    S.REQUESTED: frozenset({S.FILED}),
    S.FILED: frozenset({S.REMOVING}),
    S.REMOVING: frozenset({S.RETAINED, S.COMPLETE}),
    S.RETAINED: frozenset({S.COMPLETE}),
    S.COMPLETE: frozenset(),
}

_MARKED = {S.RETAINED: "retained_at", S.COMPLETE: "completed_at"}
"""The column that says when a receipt came to a state."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (
    receipt_id TEXT PRIMARY KEY, target TEXT NOT NULL, digest TEXT NOT NULL, state TEXT NOT NULL,
    requested_at REAL NOT NULL, updated_at REAL NOT NULL, completed_at REAL, waits TEXT NOT NULL DEFAULT '',
    removed TEXT NOT NULL DEFAULT '{}', checkpoints TEXT NOT NULL DEFAULT '[]',
    kafka_ends TEXT NOT NULL DEFAULT '{}', retained_at REAL, passed_at REAL);
CREATE TABLE IF NOT EXISTS targets (
    receipt_id TEXT NOT NULL REFERENCES receipts, target TEXT NOT NULL, digest TEXT NOT NULL, filed_at REAL,
    PRIMARY KEY (receipt_id, digest)) WITHOUT ROWID;
"""


_COLUMNS = """
SELECT 'receipts.' || name FROM pragma_table_info('receipts')
UNION SELECT 'targets.' || name FROM pragma_table_info('targets')
"""


class ReceiptError(Exception):
    """A receipt that is not there, or that cannot become what was asked, or a book that this version cannot read."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One request to forget. Times are Unix seconds."""

    receipt_id: str
    target: str
    """`subject` or `session`."""
    state: ReceiptState
    requested_at: float
    updated_at: float
    completed_at: float | None = None
    waits: str = ""
    """What it waits for, in words."""
    removed: dict[str, int] = {}
    """How much was removed, by place."""
    checkpoints: tuple[str, ...] = ()
    """`policy/checkpoint` of each that learned from what is gone, or descends from one that did."""
    kafka_ends: dict[int, int] = {}
    """Partition → where it ended when nothing more could come: complete once retention has removed up to there."""
    retained_at: float | None = None
    """When that was."""
    passed_at: float | None = None
    """When retention was first seen to have done so; the files go a little later."""


class Receipts:
    """The receipts of one installation. `clock` gives Unix seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises `ReceiptError` where another version of everloop made the database."""
        self._path, self._clock = path, clock
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)
            found = set(db.execute(_COLUMNS))
        with closing(sqlite3.connect(":memory:")) as db:
            db.executescript(_SCHEMA)
            missing = [name for (name,) in sorted(set(db.execute(_COLUMNS)) - found)]
        if missing:
            raise ReceiptError(
                f"{path} has no {', '.join(missing)}: another version of everloop made it, and everloop "
                "converts no receipts yet. Move it, and what begins with its name, out of the home folder, and ask "
                "again with `everloop forget` for all whose receipt was not complete"
            )

    def request(self, target: str, target_id: str) -> Receipt:
        """A new receipt; the one that is at work where the same was asked for before."""
        digest, now = erasure_digest(target, target_id), self._clock()
        with self._write() as db:
            known = db.execute(
                "SELECT receipt_id FROM receipts WHERE digest = ? AND state <> ?", (digest, S.COMPLETE)
            ).fetchone()
            receipt_id = known[0] if known else f"er-{secrets.token_hex(8)}"
            if not known:
                db.execute(
                    "INSERT INTO receipts (receipt_id, target, digest, state, requested_at, updated_at)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (receipt_id, target, digest, S.REQUESTED, now, now),
                )
                db.execute("INSERT INTO targets VALUES (?, ?, ?, NULL)", (receipt_id, target, digest))
        return self.get(receipt_id)

    def get(self, receipt_id: str) -> Receipt:
        """Raises `ReceiptError` where there is none."""
        found = self._select("WHERE receipt_id = ?", (receipt_id,))
        if not found:
            raise ReceiptError(f'there is no receipt "{receipt_id}": `everloop forget status` lists them')
        return found[0]

    def every(self) -> list[Receipt]:
        """All receipts, the newest first."""
        return self._select("ORDER BY requested_at DESC, receipt_id", ())

    def unfinished(self) -> list[Receipt]:
        """Those that are not complete, the oldest first."""
        return self._select("WHERE state <> ? ORDER BY requested_at, receipt_id", (S.COMPLETE,))

    def move(self, receipt_id: str, to: ReceiptState) -> Receipt:
        """Brings the receipt to a state; one that stands there already stays. Raises `ReceiptError`."""
        with self._write() as db:
            row = db.execute("SELECT state FROM receipts WHERE receipt_id = ?", (receipt_id,)).fetchone()
            state = S(row[0])
            if to is not state:
                if to not in RECEIPT_TRANSITIONS[state]:
                    raise ReceiptError(f"receipt {receipt_id} is {state} and cannot become {to}")
                now = self._clock()
                db.execute(
                    "UPDATE receipts SET state = ?, updated_at = ?, waits = '' WHERE receipt_id = ?",
                    (to, now, receipt_id),
                )
                if to in _MARKED:
                    db.execute(f"UPDATE receipts SET {_MARKED[to]} = ? WHERE receipt_id = ?", (now, receipt_id))
        return self.get(receipt_id)

    def note(
        self,
        receipt_id: str,
        *,
        waits: str | None = None,
        removed: Mapping[str, int] = {},
        checkpoints: Iterable[str] | None = None,
        kafka_ends: Mapping[int, int] | None = None,
    ) -> Receipt:
        """Writes what is known by now; what was removed is added to what was removed before."""
        before = self.get(receipt_id)
        total = {name: before.removed.get(name, 0) + removed.get(name, 0) for name in {**before.removed, **removed}}
        values = {
            "waits": before.waits if waits is None else waits,
            "removed": msgspec.json.encode({name: total[name] for name in sorted(total) if total[name]}).decode(),
            "checkpoints": msgspec.json.encode(
                before.checkpoints if checkpoints is None else sorted({*before.checkpoints, *checkpoints})
            ).decode(),
            "kafka_ends": msgspec.json.encode(before.kafka_ends if kafka_ends is None else kafka_ends).decode(),
            "updated_at": self._clock(),
        }
        with self._write() as db:
            names = ", ".join(f"{name} = :{name}" for name in values)
            db.execute(f"UPDATE receipts SET {names} WHERE receipt_id = :id", values | {"id": receipt_id})
        return self.get(receipt_id)

    def passed(self, receipt_id: str) -> float:
        """Kafka's retention has passed, now or since it was first said: when that was."""
        with self._write() as db:
            sql = "UPDATE receipts SET passed_at = coalesce(passed_at, ?) WHERE receipt_id = ? RETURNING passed_at"
            [at] = db.execute(sql, (self._clock(), receipt_id)).fetchone()
        return at

    def add_targets(self, receipt_id: str, targets: Iterable[tuple[str, str]], filed_at: float | None = None) -> int:
        """Targets (target, digest) that were found to belong to it; how many of them are new.

        `filed_at`: since when they have been on the log, for those that need not be filed.
        """
        with self._write() as db:
            before = db.total_changes
            db.executemany(
                "INSERT OR IGNORE INTO targets VALUES (?, ?, ?, ?)",
                ((receipt_id, target, digest, filed_at) for target, digest in targets),
            )
            return db.total_changes - before

    def targets(self, receipt_id: str) -> dict[str, str]:
        """Digest → target of all that the receipt is to remove."""
        with self._read() as db:
            rows = db.execute("SELECT digest, target FROM targets WHERE receipt_id = ?", (receipt_id,))
            return dict(rows.fetchall())

    def unfiled(self, receipt_id: str) -> list[Erasure]:
        """The erasures that may not be on the log yet."""
        requested_at = self.get(receipt_id).requested_at
        with self._read() as db:
            rows = db.execute(
                "SELECT target, digest FROM targets WHERE receipt_id = ? AND filed_at IS NULL ORDER BY digest",
                (receipt_id,),
            ).fetchall()
        return [Erasure(erasure_id=receipt_id, target=t, digest=d, requested_at=requested_at) for t, d in rows]

    def filed(self, receipt_id: str, erasures: Iterable[Erasure], at: float) -> None:
        """These are on the log since `at` (Unix seconds), after fsync."""
        with self._write() as db:
            db.executemany(
                "UPDATE targets SET filed_at = ? WHERE receipt_id = ? AND digest = ?",
                ((at, receipt_id, erasure.digest) for erasure in erasures),
            )

    def filed_at(self, receipt_id: str) -> float:
        """When the last of its erasures was filed; 0 where none was."""
        with self._read() as db:
            [at] = db.execute("SELECT max(filed_at) FROM targets WHERE receipt_id = ?", (receipt_id,)).fetchone()
        return at or 0.0

    def _select(self, clause: str, values: tuple) -> list[Receipt]:
        with self._read() as db:
            db.row_factory = sqlite3.Row
            rows = [dict(row) for row in db.execute(f"SELECT * FROM receipts {clause}", values)]
        for row in rows:
            del row["digest"]
            row |= {name: msgspec.json.decode(row[name]) for name in ("removed", "checkpoints", "kafka_ends")}
        return [msgspec.convert(row, Receipt, strict=False) for row in rows]

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as db:
            yield db

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._read() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
