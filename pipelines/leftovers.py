"""Where ids of turns and people are left beside the log, the lake and the datasets: databases, logs, reports.

None of these holds what users wrote. An id that an erasure covers is overwritten with crosses of its own length, so
that files which a process is appending to can be cleaned as well, and JSON stays JSON. SQLite files are then vacuumed,
for an old value stays in a page until the page is used again.
"""

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from ingest.contracts.erasure import TARGETS, erasure_digest
from ingest.contracts.ids import ID
from pipelines.errors import PipelineError

Digests = Mapping[str, str]
"""Digest → target of what is to go."""

_BUSY_SECONDS = 10.0
"""How long to wait for others who are at a database."""
_RUN_TEXTS = {"runs": ("reason",), "stages": ("result", "progress", "error")}


def clean_runs(path: Path, goal: Digests) -> int:
    """Errors and results in `pipelines.db`; how many ids there were. Raises `PipelineError` where it is in use."""
    if not path.exists():
        return 0
    found = 0
    with _opened(path) as db:
        db.execute("BEGIN IMMEDIATE")  # a stage that notes something meanwhile waits: else that would be undone
        for table, columns in _RUN_TEXTS.items():
            for row in db.execute(f"SELECT rowid, {', '.join(columns)} FROM {table}").fetchall():
                for column, text in zip(columns, row[1:], strict=True):
                    clean, count = _cleaned(text.encode(), goal)
                    if count:
                        db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (clean.decode(), row[0]))
                        found += count
        db.execute("COMMIT")
        _compact(db, path)
    return found


def clean_control(path: Path, goal: Digests) -> int:
    """Subjects that opted out of training, in control's own SQLite file: nothing of theirs can be trained on any more.

    Gateways are told, as control would tell them. Raises `PipelineError` where it is in use.
    """
    if not path.exists():
        return 0
    with _opened(path) as db:
        subjects = [subject for (subject,) in db.execute("SELECT subject FROM opted_out").fetchall()]
        gone = [subject for subject in subjects if erasure_digest("subject", subject) in goal]
        if gone:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("DELETE FROM opted_out WHERE subject = ?", ((subject,) for subject in gone))
            db.execute("UPDATE revision SET value = value + 1")
            db.execute("COMMIT")
        _compact(db, path)
    return len(gone)


def mentions(path: Path, goal: Digests) -> bool:
    """Whether the file names somebody or something in `goal`."""
    return any(_covers(match, goal) for match in ID.finditer(path.read_bytes()))


def overwrite(files: Iterable[Path], goal: Digests) -> int:
    """The ids in these files, in place; how many there were. Raises `PipelineError` where one may not be written to."""
    found = 0
    for path in files:
        try:
            found += _overwritten(path, goal)
        except FileNotFoundError:
            pass  # gone meanwhile, with what it held
        except OSError as error:
            said = f"{path} cannot be cleaned ({error.strerror}): let this user write to it, or remove it"
            raise PipelineError(said) from error
    return found


def _overwritten(path: Path, goal: Digests) -> int:
    found = 0
    while mentions(path, goal):
        with path.open("r+b") as file:
            places = [match for match in ID.finditer(file.read()) if _covers(match, goal)]
            for match in places:
                file.seek(match.start())
                file.write(b"x" * len(match[0]))
            found += len(places)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return found
            # Else it was rotated or replaced meanwhile, and the one of this name now is looked at, too.
    return found


def _cleaned(text: bytes, goal: Digests) -> tuple[bytes, int]:
    count = sum(_covers(match, goal) for match in ID.finditer(text))
    return ID.sub(lambda match: b"x" * len(match[0]) if _covers(match, goal) else match[0], text), count


def _covers(match: re.Match[bytes], goal: Digests) -> bool:
    return any(erasure_digest(target, match[0].decode()) in goal for target in TARGETS)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
            yield db
    except sqlite3.OperationalError as error:
        raise PipelineError(f"{path} cannot be cleaned now: {error}") from error


def _compact(db: sqlite3.Connection, path: Path) -> None:
    """Every page anew, and the write-ahead log emptied."""
    db.execute("VACUUM")
    if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise PipelineError(f"{path} cannot be cleaned now: somebody is reading it")
