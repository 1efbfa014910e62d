"""One run: load, faults drawn at random, everything drained, and the verdict."""

import random
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from ingest.config import LogSettings
from ingest.lake import TURNS, read
from ingest.land import land
from ingest.spool import folders
from tests.faults.faults import Destroyed, Faults
from tests.faults.ledger import Seen, seen
from tests.faults.machine import Machine, say
from tests.faults.verdict import Verdict, filled, judge, missing
from tests.kafka import Broker

_CALLERS, _PAUSE = 8, 0.05
_RECORD_BYTES = 128 << 10
"""Some turns are larger, and travel in parts."""
_MOVES_EVERY = 3
"""Kills between two other faults, on average."""
_PATIENCE = 300.0
"""Seconds that landers have for what is left when load ends."""
_DATASETS = 2
"""Accepted with turns in them, at least: of fewer, none can have what another has."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, and what came of it."""

    log: str
    ack: str
    seed: int
    seconds: float
    disk: str
    kills: dict[str, int]
    others: dict[str, int]
    seen: dict[str, Seen]
    """By kind of fault: what callers were told between it and the next."""
    silence: float
    """Seconds without any acknowledgement, at most."""
    refused: dict[str, int]
    """What callers met instead, by kind."""
    landed_under_load: int
    """Turns that the landers under fault had landed when load ended."""
    late: int
    """Of what was acknowledged, what they had still not landed minutes later, unharmed."""
    ended: dict[str, int]
    """Parts that ended by themselves, by kind; they were started again."""
    last_words: dict[str, str]
    verdict: Verdict

    def holds(self) -> bool:
        """Whether nothing was lost, doubled or used twice, of enough, and each part did its work to the end."""
        return self.verdict.holds() and not self.ended and not self.late


def run(
    home: Path,
    *,
    seed: int,
    kills: int,
    every: float,
    downtime: float,
    broker: Broker | None,
    ack: Literal["disk", "broker"] = "disk",
) -> Result:
    """`kills` in all, one every `every` seconds on average, each under load; `broker` None: the embedded log."""
    rng = random.Random(seed)
    begun = time.monotonic()
    log = LogSettings()
    if broker is not None:
        to = {"bootstrap": broker.bootstrap, "topic": f"faults-{uuid.uuid4().hex}", "partitions": 4}
        log = LogSettings(kind="kafka", ack=ack, max_record_bytes=_RECORD_BYTES, **to)
    with Machine(home, log, broker) as machine:
        faults = Faults(machine, rng)
        machine.call(_CALLERS, _PAUSE, seed)
        moves = [faults.jump_clock, faults.fill_disk, lambda: faults.pause_lander(4 * every), faults.damage_segment]
        if broker is not None:
            moves.append(faults.restart_broker)
        order: list = []
        while faults.kills.total() < kills:
            machine.goes_on(time.monotonic() + rng.expovariate(1 / every))
            faults.kill(downtime)
            if rng.random() < 1 / _MOVES_EVERY:
                machine.goes_on()
                order = order or rng.sample(moves, len(moves))  # each in its turn
                order.pop()()
        machine.goes_on()
        faults.right_clocks()
        machine.until(lambda: len(filled(machine.datasets)) >= _DATASETS, f"{_DATASETS} datasets with turns")
        under_load = read(machine.lake, TURNS).count_rows()
        late = drain(machine, begun, faults.destroyed)
        lines = machine.ledger.lines()
        return Result(
            log=log.kind,
            ack=log.ack,
            seed=seed,
            seconds=time.monotonic() - begun,
            disk="tmpfs" if machine.mounted else "the spools' bound: no tmpfs may be mounted here",
            kills=dict(faults.kills),
            others=dict(faults.others),
            seen=seen(lines, faults.times),
            silence=machine.ledger.silence(),
            refused=dict(Counter(machine.refused())),
            landed_under_load=under_load,
            late=late,
            ended=machine.ended,
            last_words=machine.last_words,
            verdict=judge(machine.ledger, machine.lake, machine.datasets, faults.destroyed),
        )


def drain(machine: Machine, begun: float, destroyed: Destroyed) -> int:
    """Load ends, and all that is on the spools lands; how much the landers under fault left to one without faults."""
    machine.until(lambda: machine.broker_due is None, "the broker")
    machine.until(lambda: all(part.due is None for part in machine.parts.values()), "every part to live")
    say(begun, "every part lives")
    machine.stop_calling()
    machine.stop("gateway")
    say(begun, "gateways have ended")
    if machine.log.kind == "kafka":
        machine.until(lambda: not any(folders(machine.spool)), "all to be sent, and the spools to be gone")
    machine.stop("freezer", "forwarder")
    end = time.monotonic() + _PATIENCE
    while (late := len(missing(machine.ledger, machine.lake, destroyed))) and time.monotonic() < end:
        machine.tend()
        time.sleep(1.0)
    machine.stop("lander")
    say(begun, "the rest has ended")
    for _ in range(2):  # the second sees that the first left nothing
        landed = land(log=machine.log, spool=machine.spool, lake=machine.lake)
        say(begun, f"landed {landed.rows}")
    assert not any(landed.rows.values()), landed
    return late
