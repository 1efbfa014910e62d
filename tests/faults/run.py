"""One run: load, faults drawn at random, everything drained, and the verdict."""

import random
import time
from pathlib import Path
from typing import Literal

import msgspec

from ingest.config import LogSettings
from ingest.land import land
from ingest.spool import folders
from tests.faults.faults import Faults
from tests.faults.machine import Machine, draw_topic, say
from tests.faults.verdict import Verdict, judge
from tests.kafka import Broker

_CALLERS, _PAUSE = 8, 0.05
_RECORD_BYTES = 128 << 10
"""Some turns are larger, and travel in parts."""
_MOVES_EVERY = 3
"""Kills between two other faults, on average."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, and what came of it."""

    log: str
    ack: str
    seed: int
    seconds: float
    disk: str
    kills: dict[str, int]
    others: dict[str, int]
    refused: int
    ended: dict[str, int]
    """Parts that ended by themselves, by kind; they were started again."""
    last_words: dict[str, str]
    verdict: Verdict


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
        to = {"bootstrap": broker.bootstrap, "topic": draw_topic(rng), "partitions": 4}
        log = LogSettings(kind="kafka", ack=ack, max_record_bytes=_RECORD_BYTES, **to)
    with Machine(home, log, broker) as machine:
        faults = Faults(machine, rng)
        machine.call(_CALLERS, _PAUSE, seed)
        moves = [faults.jump_clock, faults.fill_disk, lambda: faults.pause_lander(4 * every)]
        if ack == "disk":  # a segment that waits for no broker is there long enough to be damaged
            moves.append(faults.damage_segment)
        if broker is not None:
            moves.append(faults.restart_broker)
        order: list = []
        while faults.kills.total() < kills:
            before, at = machine.acknowledged(), time.monotonic() + rng.expovariate(1 / every)
            machine.until(
                lambda before=before, at=at: machine.acknowledged() > before and time.monotonic() > at, "load to go on"
            )
            faults.kill(downtime)
            if rng.random() < 1 / _MOVES_EVERY:
                order = order or rng.sample(moves, len(moves))  # each in its turn
                order.pop()()
        faults.right_clocks()
        drain(machine, begun)
        return Result(
            log=log.kind,
            ack=log.ack,
            seed=seed,
            seconds=time.monotonic() - begun,
            disk="tmpfs" if machine.mounted else "the spools' bound: no tmpfs may be mounted here",
            kills=dict(faults.kills),
            others=dict(faults.others),
            refused=len(machine.refused()),
            ended=machine.ended,
            last_words=machine.last_words,
            verdict=judge(machine.ledger, machine.lake, machine.datasets, faults.destroyed),
        )


def drain(machine: Machine, begun: float) -> None:
    """Load ends, and all that is on the spools lands."""
    machine.until(lambda: machine.broker_due is None, "the broker")
    machine.until(lambda: all(part.due is None for part in machine.parts.values()), "every part to live")
    say(begun, "every part lives")
    machine.stop_calling()
    machine.stop("gateway")
    say(begun, "gateways have ended")
    if machine.log.kind == "kafka":
        machine.until(lambda: not any(folders(machine.spool)), "all to be sent, and the spools to be gone")
    machine.stop("freezer", "forwarder", "lander")
    say(begun, "the rest has ended")
    for _ in range(2):  # the second sees that the first left nothing
        landed = land(log=machine.log, spool=machine.spool, lake=machine.lake)
        say(begun, f"landed {landed.rows}")
    assert not any(landed.rows.values()), landed
