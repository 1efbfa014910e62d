"""How fast the gateway is, beside LiteLLM, vllm-router and no proxy at all: `python -m benchmarks.gateway --json F`.

One run, one stand-in engine that costs next to nothing, one worker for each proxy, answers of 64 tokens, streamed and
not. The arms take turns, a few seconds each, so that whatever else the machine does meets all of them:

1. `start`: each proxy, up to its first answer;
2. `load`: 16 connections without a pause; what counts is requests per second of the proxy's own processor time;
3. `alone`: one connection; what a proxy adds is its time less that of the direct way in the same run;
4. `half`: a fixed rate, half of what the proxy could do under load, and the direct way at the same rate;
5. `long run`: many turns through everloop, and its memory before and after.
"""

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import arms, load
from benchmarks.arms import ENDINGS, Arm, Arms
from benchmarks.load import Run

CONNECTIONS = 16


class Seen:
    """What one arm did in one mode: its runs, and the processor time of the proxy in each run under load."""

    def __init__(self) -> None:
        self.load: list[Run] = []
        self.cpu: list[float] = []
        self.engine_cpu: list[float] = []
        self.alone: list[Run] = []
        self.half: list[Run] = []
        self.half_direct: list[Run] = []

    @property
    def per_second(self) -> float:
        """Requests per second under load."""
        return statistics.median(run.per_second for run in self.load)

    @property
    def per_cpu_second(self) -> float:
        """Requests per second of the proxy's processor time."""
        return sum(len(run.whole) for run in self.load) / max(sum(self.cpu), 0.01)


def measure(names: list[str], rounds: int, seconds: float, turns: int) -> dict:
    """The whole run; the JSON's content. `seconds` is the length of one arm's turn."""
    arms.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arms.CACHE, prefix="run-") as home, Arms(Path(home)) as started:
        running = [started.start(name) for name in ("direct", *names)]
        seen = {(arm.name, mode): Seen() for arm in running for mode in ENDINGS}

        def each(act: Callable[[Arm, str, Seen], None], times: int = rounds) -> None:
            for _ in range(times):
                for mode in ENDINGS:
                    for arm in running:
                        act(arm, mode, seen[arm.name, mode])

        def under_load(arm: Arm, mode: str, into: Seen) -> None:
            proxy, engine = cpu(arm), started.engine.cpu()
            into.load.append(closed(arm, mode, CONNECTIONS, seconds))
            into.cpu.append(cpu(arm) - proxy)
            into.engine_cpu.append(started.engine.cpu() - engine)

        def at_half(arm: Arm, mode: str, into: Seen) -> None:
            if arm.process is not None:
                rate = into.per_second / 2
                into.half.append(paced(arm, mode, rate, seconds))
                into.half_direct.append(paced(running[0], mode, rate, seconds))

        each(lambda arm, mode, into: (closed(arm, mode, CONNECTIONS, min(seconds, 1.0)), None)[1], times=1)
        each(under_load)
        each(lambda arm, mode, into: into.alone.append(closed(arm, mode, 1, seconds)))
        each(at_half)
        rss = {arm.name: arm.process.rss_mb() for arm in running if arm.process is not None}
        raw = {arm.name: told(arm, rss, seen) for arm in running}
        return {
            **summary(raw),
            "long_run": long_run(next(arm for arm in running if arm.name == "everloop"), turns),
            "conditions": {
                "connections": CONNECTIONS,
                "rounds": rounds,
                "seconds": seconds,
                "machine": platform.platform(),
                "python": platform.python_version(),
                "versions": arms.versions(),
            },
            "arms": raw,
        }


def cpu(arm: Arm) -> float:
    """Processor time of the arm's proxy so far."""
    return arm.process.cpu() if arm.process is not None else 0.0


def closed(arm: Arm, mode: str, connections: int, seconds: float) -> Run:
    return load.closed(arm.port, arm.request(mode), ENDINGS[mode], connections, seconds)


def paced(arm: Arm, mode: str, rate: float, seconds: float) -> Run:
    return load.paced(arm.port, arm.request(mode), ENDINGS[mode], 4 * CONNECTIONS, seconds, rate)


def long_run(arm: Arm, turns: int) -> dict:
    """Memory of the proxy before and after so many turns, half of them streamed, in ten steps."""
    assert arm.process is not None, "everloop is a process"
    rss = [arm.process.rss_mb()]
    for step in range(10):
        mode = "stream" if step % 2 else "plain"
        load.closed(arm.port, arm.request(mode), ENDINGS[mode], CONNECTIONS, 1e9, at_most=turns // 10)
        rss.append(arm.process.rss_mb())
    return {"turns": turns // 10 * 10, "rss_mb_before": rss[0], "rss_mb_after": rss[-1], "rss_mb": rss}


def told(arm: Arm, rss: dict[str, float], seen: dict[tuple[str, str], Seen]) -> dict:
    """One arm's raw figures."""
    found: dict = {"startup_seconds": arm.startup_seconds, "rss_mb": rss.get(arm.name)}
    for mode in ENDINGS:
        own = seen[arm.name, mode]
        direct = seen["direct", mode]
        loaded = {
            "requests": sum(len(run.whole) for run in own.load),
            "per_second": own.per_second,
            "engine_busy": sum(own.engine_cpu) / sum(run.seconds for run in own.load),
        }
        found[mode] = {"load": loaded, "alone": times(own.alone)}
        if arm.process is not None:
            loaded["cpu_seconds"] = sum(own.cpu)
            loaded["per_cpu_second"] = own.per_cpu_second
            found[mode]["alone"] |= added(own.alone, direct.alone)
            rate = {"per_second": own.per_second / 2}
            found[mode]["half"] = rate | times(own.half) | added(own.half, own.half_direct)
    return found


def times(runs: list[Run]) -> dict[str, float]:
    """Milliseconds over all runs together: to the end, and to the body's first byte."""
    whole, first = [t for run in runs for t in run.whole], [t for run in runs for t in run.first]
    return {
        "p50_ms": percentile(whole, 50),
        "p99_ms": percentile(whole, 99),
        "ttfb_p50_ms": percentile(first, 50),
        "ttfb_p99_ms": percentile(first, 99),
    }


def percentile(seconds: list[float], percent: int) -> float:
    """In milliseconds."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def added(runs: list[Run], direct: list[Run]) -> dict[str, float]:
    """What a proxy's times are above the direct way's."""
    own, less = times(runs), times(direct)
    return {f"added_{name}": own[name] - less[name] for name in own}


def summary(raw: dict) -> dict:
    """Everloop's figures, by mode: against the others, what it adds, and what it takes."""
    own = raw["everloop"]
    found: dict = {}
    for other in raw.keys() - {"direct", "everloop"}:
        found[f"ratio_to_{other.replace('-', '_')}"] = {
            mode: own[mode]["load"]["per_cpu_second"] / raw[other][mode]["load"]["per_cpu_second"] for mode in ENDINGS
        }
    for figure in ("added_p50_ms", "added_p99_ms", "added_ttfb_p50_ms"):
        found[figure] = {mode: own[mode]["alone"][figure] for mode in ENDINGS}
        found[f"half_load_{figure}"] = {mode: own[mode]["half"][figure] for mode in ENDINGS}
    return {**found, "rss_mb": own["rss_mb"], "startup_seconds": own["startup_seconds"]}


def show(result: dict) -> None:
    """The figures as lines of a table."""
    print(f"{'':12}{'mode':8}{'req/CPU s':>10}{'req/s':>8}{'added p50':>11}{'p99':>8}{'ttfb p50':>10}", end="")
    print(f"{'half p50':>10}{'p99':>8}{'MB':>6}{'start':>7}")
    for name, arm in result["arms"].items():
        for mode in ENDINGS:
            loaded, alone, half = arm[mode]["load"], arm[mode]["alone"], arm[mode].get("half", {})
            print(f"{name:12}{mode:8}{loaded.get('per_cpu_second', 0):10.0f}{loaded['per_second']:8.0f}", end="")
            print(f"{alone.get('added_p50_ms', 0):11.2f}{alone.get('added_p99_ms', 0):8.2f}", end="")
            print(f"{alone.get('added_ttfb_p50_ms', 0):10.2f}{half.get('added_p50_ms', 0):10.2f}", end="")
            print(f"{half.get('added_p99_ms', 0):8.2f}{arm['rss_mb'] or 0:6.0f}{arm['startup_seconds']:7.2f}")
    print({name: value for name, value in result.items() if name.startswith("ratio")})
    print({name: value for name, value in result["long_run"].items() if name != "rss_mb"})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--rounds", type=int, default=3, help="how often the arms take turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one turn of one arm")
    parser.add_argument("--turns", type=int, default=100_000, help="length of the long run through everloop")
    others = [name for name in arms.NAMES if name not in ("direct", "everloop")]
    parser.add_argument("--beside", nargs="*", default=others, choices=others, help="whom to measure it beside")
    options = parser.parse_args()
    result = measure(["everloop", *options.beside], options.rounds, options.seconds, options.turns)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
