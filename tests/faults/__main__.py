"""`python -m tests.faults --json faults.json`: the whole, on Kafka and on the embedded log; what `make faults` runs."""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from ingest.kafka_broker import missing
from tests.faults.faults import FAULTS
from tests.faults.run import Result, run
from tests.kafka import Broker


def main() -> int:
    """Writes what was seen; the exit code is 1 where anything was lost, doubled, used twice, or never tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--kills",
        type=int,
        default=200,
        help="in all; a quarter with `ack = broker`, a quarter on the embedded log",
    )
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    if (sentence := missing()) is not None:
        parser.exit(2, f"{sentence}\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is ended, what is mounted unmounted
    results: list[Result] = []
    home = Path(tempfile.mkdtemp(prefix="everloop-faults-"))
    broker = Broker(home / "broker")
    quarter = options.kills // 4
    held = False
    try:
        broker.start()
        for name, kills, more in (
            ("kafka", options.kills - 2 * quarter, {"broker": broker}),
            ("kafka-ack-broker", quarter, {"broker": broker, "ack": "broker"}),
            ("embedded", quarter, {"broker": None}),
        ):
            print(f"{name}: {kills} kills, seed {options.seed}", file=sys.stderr, flush=True)
            at = home / name
            results.append(run(at, seed=options.seed, kills=kills, every=options.every, downtime=3.0, **more))
            print(msgspec.json.format(msgspec.json.encode(results[-1])).decode(), file=sys.stderr, flush=True)
        held = all(result.holds() for result in results) and not untried(results)
    finally:  # also of runs that stopped half-way
        broker.kill()
        found = {"holds": held, **summary(results)}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        if held:
            shutil.rmtree(home)
        else:
            print(f"what was there is in {home}", file=sys.stderr)
    return 0 if held else 1


def untried(results: list[Result]) -> list[str]:
    """Kinds of faults that nothing met."""
    return sorted(FAULTS.difference(*(result.seen for result in results)))


def summary(results: list[Result]) -> dict:
    """The figures of all runs together, and each run."""
    return {
        "kills": sum(sum(result.kills.values()) for result in results),
        "acknowledged": sum(result.verdict.acknowledged for result in results),
        "turns": sum(result.verdict.turns for result in results),
        "feedback": sum(result.verdict.feedback for result in results),
        "lost": sum(len(result.verdict.lost) for result in results),
        "duplicated": sum(len(result.verdict.duplicated) for result in results),
        "destroyed": sum(result.verdict.destroyed for result in results),
        "in_two_datasets": sum(len(result.verdict.in_two_datasets) for result in results),
        "kills_by_kind": dict(sum((Counter(result.kills) for result in results), Counter())),
        "other_faults": dict(sum((Counter(result.others) for result in results), Counter())),
        "untried": untried(results),
        "seeds": [result.seed for result in results],
        "runs": results,
    }


if __name__ == "__main__":
    sys.exit(main())
