"""The control database: opened, migrated to the newest schema, and used one transaction at a time.

SQLite by default (a file), any SQLAlchemy URL otherwise. A transaction that reads and then writes holds
the write lock from its start (`BEGIN IMMEDIATE`; on PostgreSQL, the revision's row), so that two heartbeats
cannot both be given the turn to swap.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from serving.control.errors import DatabaseUnusable
from serving.control.tables import RevisionRow

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_MS = 5000


class Database:
    """The database at `location`: a file, or a URL. Raises `DatabaseUnusable`."""

    def __init__(self, location: str) -> None:
        url = location if "://" in location else f"sqlite:///{Path(location).absolute()}"
        try:
            if "://" not in location:
                Path(location).absolute().parent.mkdir(parents=True, exist_ok=True)
            self._engine = create_engine(url)
            if self._engine.dialect.name == "sqlite":
                _prepare_sqlite(self._engine)
            self._migrate()
        except (SQLAlchemyError, OSError) as error:
            raise DatabaseUnusable(
                f"the control database {self._shown(location)} cannot be used ({_first_line(error)}): "
                "name a writable file, or a database that answers"
            ) from error

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that changes nothing."""
        with Session(self._engine) as session:
            yield session

    @contextmanager
    def write(self, *, changes_snapshot: bool = True) -> Iterator[Session]:
        """A transaction that holds the write lock; committed at the end of the block, with a new revision."""
        with Session(self._engine) as session, session.begin():
            row = session.execute(select(RevisionRow).with_for_update()).scalar_one()
            yield session
            if changes_snapshot:
                row.value += 1

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        with self._engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _shown(self, location: str) -> str:
        return self._engine.url.render_as_string() if "://" in location and hasattr(self, "_engine") else location


def bump(session: Session) -> None:
    """A new revision, for a transaction opened with `changes_snapshot=False` that changed something after all."""
    session.execute(select(RevisionRow)).scalar_one().value += 1


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin where `begin` below says, not where sqlite3 guesses
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
