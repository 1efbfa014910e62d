"""Processes for the serving tests: control, gateway and stand-in engines on free ports, ended by pid.

Start-up waits are generous, for the machine may be busy; nothing else here depends on time.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from ingest.contracts.events import Event, decode_event
from ingest.contracts.fleet import EngineState, Heartbeat
from ingest.contracts.turn import Turn
from ingest.spool import adopt, folders, read_segment
from pipelines.stack.addresses import free_port

CONTROL_TOKEN = "control-token"
ENGINE_TOKEN = "engine-token"
HASH_SECRET = "00112233445566778899aabbccddeeff"
PATIENCE = 120.0


def environment() -> dict[str, str]:
    """The environment of everloop's processes."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    secrets = {"EVERLOOP_CONTROL_TOKEN": CONTROL_TOKEN, "EVERLOOP_HASH_SECRET": HASH_SECRET}
    return {**kept, **secrets, "EVERLOOP_ENGINE_TOKEN": ENGINE_TOKEN}


def wait_until(condition, what: str, seconds: float = PATIENCE) -> None:
    """Returns when `condition()` is true; fails the test otherwise."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether `url` answers at all."""
    try:
        return httpx.get(url, timeout=5).status_code < 500
    except httpx.HTTPError:
        return False


@dataclass
class Stack:
    """One control, any number of gateways and engines, below one folder."""

    home: Path
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)
    control_port: int = 0
    gateway_port: int = 0
    admin_port: int = 0
    workers: int = 1

    # -- processes

    def start(self, name: str, *arguments: str) -> subprocess.Popen:
        """Starts `python -m arguments…`, its output in `<name>.log`."""
        log = (self.home / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environment(), stdout=log, stderr=log, cwd=Path(__file__).parents[2]
        )
        log.close()
        self.processes[name] = process
        return process

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        """Ends a process by its pid, and waits for it."""
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(PATIENCE)

    def stop_all(self) -> None:
        """Ends what is left."""
        for name in list(self.processes):
            self.stop(name, signal.SIGKILL)

    def start_control(self) -> None:
        """The control process, ready."""
        self.control_port = self.control_port or free_port()
        database = str(self.home / "control" / "control.db")
        self.start("control", "serving.control", "--port", str(self.control_port), "--database", database)
        wait_until(lambda: answers(f"{self.control_url}/health"), "control")

    def start_gateway(self, *more: str, settings: dict | None = None) -> None:
        """The gateway, ready."""
        self.gateway_port, self.admin_port = self.gateway_port or free_port(), self.admin_port or free_port()
        arguments = ["--port", str(self.gateway_port), "--admin-port", str(self.admin_port)]
        arguments += ["--control", self.control_url, "--spool", str(self.home / "spool"), *more]
        if settings:
            path = self.home / "gateway.json"
            path.write_text(json.dumps(settings))
            arguments += ["--settings", str(path)]
        self.workers = int(more[more.index("--workers") + 1]) if "--workers" in more else 1
        process = self.start("gateway", "serving.gateway", *arguments)

        def up() -> bool:
            said = (self.home / "gateway.log").read_text()[-2000:]
            assert process.poll() is None, f"the gateway ended with {process.returncode}:\n{said}"
            return answers(f"{self.gateway_url}/health")

        wait_until(up, "the gateway")

    def start_engine(self, name: str = "engine", *more: str) -> str:
        """A stand-in engine, listening; its address."""
        port = free_port()
        self.start(name, "tests.stand_in_engine", "--port", str(port), "--token", ENGINE_TOKEN, *more)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/stand-in"), name)
        return url

    # -- addresses and clients

    @property
    def control_url(self) -> str:
        """Where control is."""
        return f"http://127.0.0.1:{self.control_port}"

    @property
    def gateway_url(self) -> str:
        """Where the gateway is."""
        return f"http://127.0.0.1:{self.gateway_port}"

    def control(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Asks control."""
        content = None if body is None and method == "GET" else msgspec.json.encode(body)
        headers = {"authorization": f"Bearer {CONTROL_TOKEN}"}
        return httpx.request(method, self.control_url + path, content=content, headers=headers, timeout=30)

    def key(self, *roles: str, **more: object) -> str:
        """A new key that the gateway knows."""
        body = {"name": "test", "roles": roles or ("inference", "feedback"), **more}
        answer = self.control("POST", "/v1/keys", body).json()
        self.settle()
        return answer["key"]

    def settle(self) -> None:
        """Returns when every worker of the gateway goes by the newest snapshot."""
        newest = self.control("GET", "/v1/snapshot").json()["revision"]

        def settled() -> bool:
            by_worker = [value for name, value in self.samples() if name.startswith("everloop_snapshot_revision")]
            return len(by_worker) == self.workers and min(by_worker) >= newest

        wait_until(settled, "the snapshot")

    def beat(self, engine_id: str, url: str, *, state: EngineState = EngineState.READY, **more: object) -> dict:
        """One heartbeat of an engine; its assignment."""
        fields: dict = {"role": "serve", "version": "base", "build": "stand-in", "max_model_len": 4096, **more}
        beat = Heartbeat(policy="policy", url=url, token=ENGINE_TOKEN, state=state, **fields)
        answer = self.control("POST", f"/v1/engines/{engine_id}/heartbeat", beat)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def samples(self) -> list[tuple[str, float]]:
        """The gateway's samples: names with labels, and values."""
        lines = httpx.get(f"http://127.0.0.1:{self.admin_port}/metrics").text.splitlines()
        parted = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return [(name, float(value)) for name, _, value in parted]

    def metrics(self) -> dict[str, float]:
        """The gateway's samples by name and labels, added up over its workers."""
        found: dict[str, float] = {}
        for name, value in self.samples():
            name = re.sub(r',?worker="\d+"', "", name).replace("{}", "")
            found[name] = found.get(name, 0.0) + value
        return found

    # -- what is on the log

    def events(self) -> list[Event]:
        """Every event in sealed segments, and in those of dead gateways."""
        adopt(self.home / "spool")
        return [
            decode_event(payload)
            for folder in folders(self.home / "spool")
            for segment in folder.sealed()
            for _, payload in read_segment(segment.path)
        ]

    def turns(self, turn_id: str, expected: int = 1) -> list[Turn]:
        """The samples of one turn, when they are all there."""
        found: list[Turn] = []

        def there() -> bool:
            found[:] = [e for e in self.events() if isinstance(e, Turn) and e.turn_id == turn_id]
            return len(found) >= expected

        wait_until(there, f"turn {turn_id}", 30)
        assert len(found) == expected
        return sorted(found, key=lambda turn: turn.sample)


@contextmanager
def running(home: Path, *, engine: bool = True, settings: dict | None = None) -> Iterator[Stack]:
    """Control, one policy, one gateway, and one engine that keeps itself ready."""
    home.mkdir(parents=True, exist_ok=True)
    stack = Stack(home)
    try:
        stack.start_control()
        desired = {"version": "base", "path": "/nowhere"}
        stack.control("PUT", "/v1/policies/policy", {"name": "policy", "desired": desired}).raise_for_status()
        if engine:
            stack.start_engine("engine", "--control", stack.control_url)
            wait_until(lambda: stack.control("GET", "/v1/fleet").json()["converged"]["policy"], "the engine")
        stack.start_gateway(settings=settings)
        yield stack
    finally:
        stack.stop_all()


__all__ = ["Stack", "answers", "environment", "free_port", "running", "wait_until"]
