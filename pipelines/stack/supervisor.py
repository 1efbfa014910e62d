"""supervisord, as `everloop up`, `down` and `status` use it: started, updated, asked and shut down by its socket."""

import os
import subprocess
import sys
import time
import xmlrpc.client
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.stack import leftovers


class Process(msgspec.Struct, frozen=True):
    """One supervised process: supervisord's word for its state, and since when in Unix seconds."""

    name: str
    state: str
    pid: int
    since: float


class Supervisor:
    """The supervisord of one home folder, running or not."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.configuration = home.run / "supervisord.conf"

    @property
    def running(self) -> bool:
        """Whether it answers on its socket."""
        try:
            return bool(self._rpc().getState())
        except (OSError, xmlrpc.client.Error):
            return False

    @property
    def pid(self) -> int | None:
        """The process id that it wrote down, also where it was killed since."""
        with suppress(FileNotFoundError, ValueError):
            return int((self._home.run / "supervisord.pid").read_text())
        return None

    def start(self, environment: dict[str, str]) -> None:
        """Starts it as a daemon with these variables on top of ours; raises with its own words where it refuses."""
        (self._home.run / "supervisor.sock").unlink(missing_ok=True)
        variables = os.environ | environment | {leftovers.MARK: str(self._home.root)}
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.configuration)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=self._home.root)
        if done.returncode:
            said = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("Error")]
            raise PipelineError(f"supervisord did not start: {said[0] if said else 'it gave no reason'}")
        self._wait(lambda: self.running, 15, "supervisord does not answer on its socket: see logs/supervisord.log")

    def apply(self) -> None:
        """Reads the configuration again: stops what is gone, restarts what changed, starts what is new."""
        rpc = self._rpc()
        added, changed, removed = rpc.reloadConfig()[0]
        for name in (*changed, *removed):
            rpc.stopProcessGroup(name)
            rpc.removeProcessGroup(name)
        for name in (*added, *changed):
            rpc.addProcessGroup(name)

    def processes(self) -> list[Process]:
        """Every process it looks after, empty where it does not run."""
        try:
            found: Any = self._rpc().getAllProcessInfo()
        except (OSError, xmlrpc.client.Error):
            return []
        return [Process(p["name"], p["statename"].lower(), p["pid"], float(p["start"])) for p in found]

    def shut_down(self, timeout: float) -> None:
        """Asks it to stop everything and end; returns when it is gone or `timeout` seconds have passed."""
        pid = self.pid
        with suppress(OSError, xmlrpc.client.Error):
            self._rpc().shutdown()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and pid is not None and Path(f"/proc/{pid}").exists():
            time.sleep(0.1)

    def _rpc(self) -> Any:
        from supervisor.xmlrpc import SupervisorTransport

        url = f"unix://{self._home.run / 'supervisor.sock'}"
        transport: Any = SupervisorTransport(None, None, serverurl=url)
        return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor

    @staticmethod
    def _wait(done: Any, timeout: float, otherwise: str) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline:
                raise PipelineError(otherwise)
            time.sleep(0.1)
