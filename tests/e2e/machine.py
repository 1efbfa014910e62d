"""The stack of a test on this machine: up, asked, its processes killed one by one, down."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
import psutil

from pipelines.config import load
from pipelines.control import Control
from pipelines.home import Home
from pipelines.records import Run, RunState, Stage, StageState
from pipelines.runs import Runs
from pipelines.stack import secrets
from pipelines.stack.up import Stack

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
T = TypeVar("T")


class Machine:
    """The stack of the configuration at `path`. What was killed is in `killed`: name → process id."""

    def __init__(self, path: Path, policy: str) -> None:
        self.path, self.policy = path, policy
        self.config = load(path, {})
        self.home = Home.of(self.config)
        self.stack = Stack(self.config, path)
        self.runs = Runs(self.home.database)
        self.killed: dict[str, int] = {}

    def up(self) -> None:
        """Returns when everything is in service."""
        self.addresses = self.stack.up()
        self.keys = secrets.load_or_create(self.home.run / "secrets.json")
        self.control = Control(self.addresses.control, self.keys.control_token)

    def new_key(self) -> str:
        """A key for people, once the gateway knows it."""
        key = self.control.create_key("people", ["inference", "feedback"])["key"]
        headers = {"authorization": f"Bearer {key}"}
        until(lambda: httpx.get(f"{self.addresses.gateway}/v1/models", headers=headers).is_success, "the key")
        return key

    def everloop(self, *words: str) -> str:
        """What the command prints; it must not fail."""
        command = [sys.executable, "-m", "pipelines.cli", *words, "--config", str(self.path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=self.path.parent
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict:
        """`everloop status --json`."""
        return json.loads(self.everloop("status", "--json"))

    # -- processes

    def pid(self, name: str) -> int:
        """The process of this name that runs now, 0 while there is none."""
        return next((p.pid for p in self.stack.supervisor.processes() if p.name == name and p.state == "running"), 0)

    def kill(self, name: str) -> None:
        """kill -9 of the supervised process `name`."""
        self.strike(name, until(lambda: self.pid(name), f"{name} to run"))

    def strike(self, name: str, pid: int) -> None:
        """kill -9 of a process, noted as `name`."""
        assert pid > 0, f"{name} is not running"
        os.kill(pid, signal.SIGKILL)
        self.killed[name] = pid

    def vllm(self, name: str) -> int:
        """The vLLM server below the agent of the engine `name`, 0 while there is none."""
        return self._below(name, lambda child: "serving.engines.api_server" in child.cmdline())

    def worker(self, mark: str) -> int:
        """The scheduler's worker with this environment variable, 0 while there is none."""
        return self._below("scheduler", lambda child: mark in child.environ())

    def _below(self, name: str, fits: Callable[[psutil.Process], bool]) -> int:
        try:
            for child in psutil.Process(self.pid(name)).children():
                if fits(child):
                    return child.pid
        except psutil.NoSuchProcess:
            pass
        return 0

    # -- the loop

    def run(self, number: int) -> Run | None:
        """The run of this number, None before it begins."""
        return next((run for run in self.runs.history(self.policy) if run.number == number), None)

    def until_stage(self, number: int, stage: Stage, state: StageState, attempts: int = 1) -> Run:
        """The run, once its stage is in this state, at this attempt at least."""

        def there() -> Run | None:
            run = self._alive(number)
            record = run.stage(stage) if run else None
            return run if record and record.state == state and record.attempts >= attempts else None

        return until(there, f"stage {stage} of run {number} to be {state}")

    def until_done(self, number: int) -> Run:
        """The run, once it is done."""

        def there() -> Run | None:
            run = self._alive(number)
            return run if run and run.state == RunState.DONE else None

        return until(there, f"run {number} to be done")

    def _alive(self, number: int) -> Run | None:
        run = self.run(number)
        assert run is None or run.state != RunState.ABANDONED, run
        return run

    def evaluates(self, version: str) -> bool:
        """Whether the evaluation engine is ready with `version`: then it is being sampled."""
        engines = [e for e in self.control.fleet()["engines"] if e.get("role") == "evaluation"]
        return any(e.get("state") == "ready" and e.get("version") == version for e in engines)

    def until_served(self, version: str) -> None:
        """Returns when every engine for users reports `version` and control calls the fleet converged."""

        def there() -> bool:
            fleet = self.control.fleet()
            serving = [e for e in fleet["engines"] if e.get("role", "serve") == "serve"]
            return fleet["converged"][self.policy] and all(e["version"] == version for e in serving)

        until(there, f"the fleet to serve {version}")


def until(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """The first true value of `look`; fails the test after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found
