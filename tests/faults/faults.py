"""What is done to a machine under load. Everything is drawn from one seeded generator."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ingest.contracts.events import decode_event
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.spool import folders, read_segment
from ingest.spool.segment import PAGE_BYTES
from tests.faults.machine import DISK_BYTES, Machine, Part, say
from tests.integration.serving_stack import answers

_WEIGHTS = {"gateway": 3.0, "forwarder": 3.0, "lander": 3.0, "broker": 1.5, "freezer": 1.0}
_FULL, _JUMPED, _PAUSED = "disk full", "clock jumped", "lander paused"
_RESTARTED, _DAMAGED = "broker restarted", "segment damaged"
FAULTS = {*_WEIGHTS, _FULL, _JUMPED, _PAUSED, _RESTARTED, _DAMAGED}
"""Every kind of fault: kills, and the others."""
_JUMPS = (5.0, 3600.0, 2 * 86400.0, 10 * 86400.0)
"""Seconds that a clock is off by, at most, in either direction."""
_INLINE = 400
"""Bytes of a row that SQLite keeps together on its page, however long the row is; they have the event's id."""


@dataclass
class Destroyed:
    """What a damaged segment held on the page that was damaged: its places and ids."""

    places: list[tuple[str, int]] = field(default_factory=list)
    turns: set[str] = field(default_factory=set)
    feedback: set[str] = field(default_factory=set)


class Faults:
    """The one who does it. `kills` and `others` count by kind, `times` has when each was over (monotonic).

    `destroyed` is what nobody can land any more.
    """

    def __init__(self, machine: Machine, rng: random.Random) -> None:
        self._machine, self._random = machine, rng
        self._begun = time.monotonic()
        self.kills: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.times: list[tuple[float, str]] = []
        self.destroyed = Destroyed()

    def kill(self, downtime: float) -> None:
        """kill -9 of one that lives; it is started again after up to `downtime` seconds. Waits for one that lives."""
        while not (alive := self._alive()):
            self._machine.tend()
            time.sleep(0.05)
        kind = self._random.choices(list(alive), [_WEIGHTS[kind] for kind in alive])[0]
        back = time.monotonic() + self._random.uniform(0, downtime)
        part = alive[kind]
        if part is None:
            assert self._machine.broker is not None, "only a broker is no part"
            self._machine.broker.kill()
            self._machine.broker_due = back
        elif part.kind == "gateway" and (workers := part.children()) and self._random.random() < 0.3:
            os.kill(self._random.choice(workers), signal.SIGKILL)  # its parent starts another
        else:
            assert part.process is not None, "it lives"
            part.process.kill()
            part.process.wait()
            part.due, part.resume_at = back, None
        self._count(self.kills, kind)

    def _count(self, into: Counter[str], what: str) -> None:
        into[what] += 1
        self.times.append((time.monotonic(), what))
        say(self._begun, f"{what} {into[what]}")

    def _alive(self) -> dict[str, Part | None]:
        """One living process of each kind."""
        alive: dict[str, Part | None] = {}
        for part in self._random.sample(list(self._machine.parts.values()), len(self._machine.parts)):
            if part.process is not None and part.due is None and part.process.poll() is None:
                alive[part.kind] = part
        if self._machine.broker is not None and self._machine.broker_due is None:
            alive["broker"] = None
        return dict(sorted(alive.items()))

    def restart_broker(self) -> None:
        """In order, as an operator does; that takes it a while, in which everything goes on."""
        machine = self._machine
        if machine.broker is None or machine.broker_due is not None:
            return
        machine.broker_due = float("inf")

        def stop() -> None:
            assert machine.broker is not None, "it has one"
            machine.broker.kill(signal.SIGTERM)
            machine.broker_due = time.monotonic()

        machine.apart(stop)
        self._count(self.others, _RESTARTED)

    def jump_clock(self) -> None:
        """One process's clock is off from now on."""
        part = self._random.choice(list(self._machine.parts.values()))
        off = self._random.choice(_JUMPS) * self._random.uniform(-1, 1)
        part.set_clock(off)
        self._count(self.others, _JUMPED)

    def right_clocks(self) -> None:
        """All of them."""
        for part in self._machine.parts.values():
            part.set_clock(0.0)

    def pause_lander(self, seconds: float) -> None:
        """One lander stands still, and goes on later as if nothing had happened: a zombie."""
        part = self._random.choice([part for part in self._machine.parts.values() if part.kind == "lander"])
        part.signal(signal.SIGSTOP)
        part.resume_at = time.monotonic() + self._random.uniform(0, seconds)
        self._count(self.others, _PAUSED)

    def fill_disk(self) -> None:
        """The spools have no room until a caller was refused: a full tmpfs, or where there is none their own bound."""
        machine = self._machine
        gateway = machine.parts["gateway"]  # one that is not up when the disk is full does not come up
        machine.until(lambda: gateway.due is None and len(gateway.children()) == 2, "both workers")
        machine.until(lambda: answers(f"{machine.stack.gateway_url}/health"), "the gateway")
        machine.goes_on()
        refused = machine.refused().count("503")
        ballast = machine.spool / ("f" * 32) / "ballast"
        if machine.mounted:
            machine.until(lambda: _resize(machine.disk, None), "a full disk")
        else:
            ballast.parent.mkdir(exist_ok=True)
            with ballast.open("wb") as file:
                file.truncate(DISK_BYTES)
        machine.until(lambda: machine.refused().count("503") > refused, "a refusal")
        if machine.mounted:
            assert _resize(machine.disk, DISK_BYTES), "it only grows"
        else:
            ballast.unlink()
        self._count(self.others, _FULL)

    def damage_segment(self) -> None:
        """One page of a segment that nobody has read yet: a byte in it, or all of it."""
        machine = self._machine
        kind = "forwarder" if machine.log.kind == "kafka" else "lander"
        readers = [part for part in machine.parts.values() if part.kind == kind]
        machine.until(lambda: all(part.due is None for part in readers), "the readers")
        for part in readers:
            part.signal(signal.SIGSTOP)
            part.resume_at = None
        try:
            before = _segments(machine.spool)
            machine.until(lambda: any(_rows(path) for path in _segments(machine.spool) - before), "a new segment")
            path = next(path for path in sorted(_segments(machine.spool) - before) if _rows(path))
            self._damage(path)
        finally:
            for part in readers:
                part.signal(signal.SIGCONT)
        self._count(self.others, _DAMAGED)

    def _damage(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        found = [(data.find(payload[:_INLINE]), sequence, payload) for sequence, payload in _rows(path)]
        assert all(at >= 0 for at, _, _ in found), "a row's first bytes stand together"
        at, sequence, payload = self._random.choice(found)
        if self._random.random() < 0.5:
            data[at + self._random.randrange(min(len(payload), _INLINE))] ^= 0x20
            lost = [(sequence, payload)]
        else:
            page = at // PAGE_BYTES
            data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
            lost = [(sequence, payload) for at, sequence, payload in found if at // PAGE_BYTES == page]
        path.write_bytes(data)
        for sequence, payload in lost:
            self.destroyed.places.append((path.parent.name, sequence))
            event = decode_event(payload)
            if self._machine.log.ack == "broker":
                continue  # nobody may be told that it is recorded
            if isinstance(event, Turn):
                self.destroyed.turns.add(event.turn_id)
            elif isinstance(event, Feedback):
                self.destroyed.feedback.add(event.feedback_id)


def _resize(disk: Path, size: int | None) -> bool:
    """Gives the tmpfs a size; None: as many bytes as it holds now. Whether it took it."""
    if size is None:
        now = os.statvfs(disk)
        size = (now.f_blocks - now.f_bfree) * now.f_frsize
    return not subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], capture_output=True).returncode


def _segments(spool: Path) -> set[Path]:
    return {segment.path for folder in folders(spool) for segment in folder.sealed()}


def _rows(path: Path) -> list[tuple[int, bytes]]:
    """Of a segment; [] where somebody removed it."""
    return list(read_segment(path)) if path.exists() else []
