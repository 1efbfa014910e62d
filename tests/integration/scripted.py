"""Functions for the stage workers of tests: they run in the worker's process."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


class Stopped(Exception):
    """An error that pickle could not rebuild: its arguments are not its message."""

    def __init__(self, monitor: str, value: float) -> None:
        super().__init__(f"{monitor} stopped it")
        self.monitor, self.value = monitor, value


def where() -> dict:
    """Which process this is, and what it was given."""
    return {"pid": os.getpid(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}


def echo(*, value: object) -> object:
    """What came in."""
    return {"path": Path("a/b"), "value": value}


def stop() -> None:
    """As a monitor does."""
    raise Stopped("kl", 2.5)


def die_once(*, note: Path) -> str:
    """Killed at the first call, done at the second."""
    if not note.exists():
        note.write_text("died")
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def die() -> None:
    """Killed at every call."""
    os.kill(os.getpid(), signal.SIGKILL)


def tell(*, progress: Callable[[dict], None]) -> dict:
    """Says how far it is."""
    progress({"step": 1, "loss": 0.5})
    return {"steps": 1}


def linger(*, note: Path) -> None:
    """Notes its process id, then stays."""
    note.with_suffix(".part").write_text(str(os.getpid()))
    note.with_suffix(".part").rename(note)
    time.sleep(600)
