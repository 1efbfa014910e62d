"""The parts under fault, started and started again by their own ids, and what is always there: control and engine.

`home` has `disk/spool`, on a tmpfs of its own where this user may mount one; lake, datasets, ledger and logs stand
beside it.
"""

import ctypes
import json
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import MODEL
from benchmarks.processes import listens
from ingest.config import LogSettings
from pipelines.stack.addresses import free_port
from tests.faults.ledger import Ledger
from tests.integration.serving_stack import Stack, answers, environment, wait_until
from tests.kafka import Broker

ROOT = Path(__file__).parents[2]
_TURNS, _FEEDBACK = 15, 5
"""So much must be acknowledged for load to count as going on."""
_CLONE_NEWNS = 0x20000
"""Linux' flag of a mount namespace of one's own."""
DISK_BYTES = 1 << 30
"""Of the tmpfs, and the spools' own bound. The spools leave 256 MiB of any disk to others."""


@dataclass
class Part:
    """One process under fault. `kind` is what it is counted as.

    `due` is when it is started again, `resume_at` when it goes on after a pause, both monotonic.
    """

    kind: str
    arguments: tuple[str, ...]
    clock: Path
    log: Path
    process: subprocess.Popen | None = None
    due: float | None = 0.0
    resume_at: float | None = None

    def start(self) -> None:
        """Its output goes to its log."""
        more = {"FAULTS_CLOCK": str(self.clock), "PYTHONPATH": str(Path(__file__).parent / "clock")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments], env=environment() | more, stdout=log, stderr=log, cwd=ROOT
            )
        self.due = None

    def signal(self, number: int) -> None:
        """To it, by its own id."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def set_clock(self, off: float) -> None:
        """Seconds that its clock is off by. In place: a process that looks at a mapped file that is cut off dies."""
        with self.clock.open("r+b") as file:
            file.write(struct.pack("d", off))

    def children(self) -> list[int]:
        """The processes that it started."""
        assert self.process is not None, "it was started"
        with suppress(OSError):
            pid = self.process.pid
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []


class Machine:
    """Everything, in one folder. Use as `with`; at its end nothing of it runs any more."""

    def __init__(self, home: Path, log: LogSettings, broker: Broker | None) -> None:
        self.home, self.log, self.broker = home, log, broker
        self.disk, self.lake, self.datasets = home / "disk", home / "lake", home / "datasets"
        self.spool, self.ledger = self.disk / "spool", Ledger(home / "ledger")
        self.stack = Stack(home)
        self.broker_due: float | None = None
        """When the broker is started again (monotonic); None while it is up."""
        self.ended: dict[str, int] = {}
        """By kind: how often parts ended by themselves."""
        self.last_words: dict[str, str] = {}
        """By kind: what the last of them said."""
        self.parts: dict[str, Part] = {}
        self._clients: subprocess.Popen | None = None
        self._apart: list[threading.Thread] = []
        self._failed: BaseException | None = None
        self.mounted = False

    def __enter__(self) -> "Machine":
        self.disk.mkdir(parents=True)
        tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)]
        self.mounted = _mounts_alone() and not subprocess.run(tmpfs, capture_output=True).returncode
        try:
            self._start_serving()
            for name, kind, arguments in self._told():
                clock = self.home / f"{name}.clock"
                clock.write_bytes(struct.pack("d", 0.0))
                self.parts[name] = Part(kind, arguments, clock, self.home / f"{name}.log")
            self.tend()
            wait_until(lambda: answers(f"{self.stack.gateway_url}/health"), "the gateway")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for part in self.parts.values():
            part.signal(signal.SIGKILL)
        if self._clients is not None:
            self._clients.kill()
        self.stack.stop_all()
        for thread in self._apart:  # a broker that comes up only now would be left behind
            thread.join()
        for process in [part.process for part in self.parts.values()] + [self._clients]:
            if process is not None:
                process.wait()
        if self.mounted:
            wait_until(
                lambda: not subprocess.run(["umount", str(self.disk)], capture_output=True).returncode, "the tmpfs", 30
            )

    def tend(self) -> None:
        """Starts what is due, and again what ended by itself, which is noted."""
        assert self._failed is None, f"what was done apart failed: {self._failed}"
        now = time.monotonic()
        for part in self.parts.values():
            if part.process is not None and part.due is None and part.process.poll() is not None:
                said = part.log.read_text(errors="replace")[-1500:]
                self.ended[part.kind] = self.ended.get(part.kind, 0) + 1
                self.last_words[part.kind] = f"exit {part.process.returncode}: {said}"
                part.due = now + 0.5
            if part.due is not None and part.due <= now:
                part.start()
            if part.resume_at is not None and part.resume_at <= now:
                part.signal(signal.SIGCONT)
                part.resume_at = None
        if self.broker is not None and self.broker_due is not None and self.broker_due <= now:
            self.broker_due = float("inf")
            self.apart(self._start_broker)

    def apart(self, work: Callable[[], None]) -> None:
        """Does it in a thread: what takes a while must not keep everything else from going on."""

        def told() -> None:
            try:
                work()
            except BaseException as error:
                self._failed = error  # else whoever waits for it waits in vain
                raise

        self._apart.append(threading.Thread(target=told))
        self._apart[-1].start()

    def _start_broker(self) -> None:
        assert self.broker is not None, "it was due"
        self.broker.start()
        self.broker_due = None

    def call(self, callers: int, pause: float, seed: int) -> None:
        """Clients begin."""
        told = ["--gateway", self.stack.gateway_url, "--key", self.stack.key(), "--ledger", str(self.home / "ledger")]
        told += ["--callers", str(callers), "--pause", str(pause), "--seed", str(seed)]
        with (self.home / "clients.log").open("ab") as log:
            self._clients = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.clients", *told], stdout=log, stderr=log, cwd=ROOT
            )

    def stop_calling(self) -> None:
        """Clients end what is under way."""
        assert self._clients is not None, "they were started"
        self._clients.terminate()
        self._clients.wait(120)

    def goes_on(self, at: float = 0.0) -> None:
        """Returns when callers have been answered since now, and not before `at` (monotonic)."""
        since = len(self.ledger.lines())
        self.until(
            lambda: time.monotonic() > at and self.ledger.goes_on(since, _TURNS, _FEEDBACK),
            f"{_TURNS} turns and {_FEEDBACK} feedback",
        )

    def refused(self) -> list[str]:
        """What callers met instead of an acknowledgement."""
        path = self.home / "ledger.refused"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition, what: str, seconds: float = 300.0) -> None:
        """Tends until `condition()`; fails after so long."""
        end = time.monotonic() + seconds
        while not condition():
            self.tend()
            assert time.monotonic() < end, f"waited in vain for {what}: {self.state()}"
            time.sleep(0.02)

    def state(self) -> str:
        """For a person, when something went wrong."""
        logs = {name: part.log.read_text(errors="replace")[-700:] for name, part in self.parts.items()}
        return json.dumps({"ended": self.last_words, "refused": self.refused()[-3:], "logs": logs}, indent=1)

    def stop(self, *kinds: str) -> None:
        """Ends parts in order, for good."""
        for part in [part for part in self.parts.values() if part.kind in kinds]:
            part.signal(signal.SIGCONT)
            part.signal(signal.SIGTERM)
            if part.process is not None:
                part.process.wait(120)
            part.process, part.due = None, float("inf")

    # -- what is told to processes

    def _told(self) -> list[tuple[str, str, tuple[str, ...]]]:
        stack = self.stack
        gateway = ("serving.gateway", "--port", str(stack.gateway_port), "--admin-port", str(stack.admin_port))
        gateway += ("--control", stack.control_url, "--spool", str(self.spool), "--workers", "2")
        gateway += ("--snapshot", str(self.home / "snapshot.json"), "--ack", self.log.ack)
        gateway += ("--max-bytes", str(DISK_BYTES), "--segment-bytes", str(1 << 20), "--segment-seconds", "0.5")
        lander = ("tests.faults.lander", str(self.spool), str(self.lake), self.log.model_dump_json())
        told: list[tuple[str, str, tuple[str, ...]]] = [
            ("gateway", "gateway", gateway),
            ("lander-1", "lander", lander),
            ("lander-2", "lander", lander),
            ("freezer", "freezer", ("tests.faults.freezer", str(self.lake), str(self.datasets))),
        ]
        if self.log.kind == "kafka":
            to = ("--bootstrap", self.log.bootstrap, "--topic", self.log.topic)
            to += ("--partitions", str(self.log.partitions), "--max-record-bytes", str(self.log.max_record_bytes))
            told.append(("forwarder", "forwarder", ("ingest.forwarder", "--spool", str(self.spool), *to)))
        return told

    def _start_serving(self) -> None:
        stack = self.stack
        stack.control_port, stack.gateway_port, stack.admin_port = free_port(), free_port(), free_port()
        stack.workers = 2
        settings = self.home / "control.json"
        settings.write_text('{"lost_seconds": 1e9}')  # its only engine beats once
        database = ("--database", str(self.home / "control.db"), "--settings", str(settings))
        stack.start("control", "serving.control", "--port", str(stack.control_port), *database)
        wait_until(lambda: answers(f"{stack.control_url}/health"), "control")
        desired = {"version": "base", "path": "/nowhere"}
        stack.control("PUT", f"/v1/policies/{MODEL}", {"name": MODEL, "desired": desired}).raise_for_status()
        engine = free_port()
        stack.start("engine", "benchmarks.engine", str(engine))
        wait_until(lambda: listens(engine), "the engine")
        stack.beat("engine", f"http://127.0.0.1:{engine}")


def _mounts_alone() -> bool:
    """What is mounted from now on, only this process and its children see: it goes with them, however they end."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS):
        return False
    return not subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode


def say(begun: float, what: str) -> None:
    """A line for a person who watches: seconds since `begun` (monotonic), and what was done."""
    print(f"{time.monotonic() - begun:7.1f} s {what}", file=sys.stderr, flush=True)
