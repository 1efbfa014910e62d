"""Processes under measurement: started, asked until they answer, counted by `/proc`, ended by their own id."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 120.0


class Process:
    """One process with all that it starts, in a session of its own."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> None:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._log = log
        self.started = time.perf_counter()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**kept, **environment}, start_new_session=True
            )

    def until(self, ready: Callable[[], bool]) -> float:
        """Waits for `ready`; seconds since the process was started."""
        while not ready():
            if self._process.poll() is not None or time.perf_counter() - self.started > _START_SECONDS:
                raise RuntimeError(f"{self._process.args!r} did not come up:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.01)
        return time.perf_counter() - self.started

    def cpu(self) -> float:
        """Seconds of processor time that it and its children took so far."""
        total = 0
        for pid in self._tree():
            with suppress(FileNotFoundError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def rss_mb(self) -> float:
        """Resident memory of it and its children."""
        total = 0
        for pid in self._tree():
            with suppress(FileNotFoundError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total / 1e6

    def _tree(self) -> list[int]:
        found = [self._process.pid]
        for pid in found:
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def stop(self) -> None:
        """Ends it and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
