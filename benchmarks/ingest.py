"""How fast ingest is, beside what its parts reach alone: `python -m benchmarks.ingest --json F`.

Every stage runs in a process of its own (`benchmarks.ingest_stages`), as it does in the product, and beside it, in the
same round, the library below it with the same bytes: SQLite, kafka-python, delta-rs, Parquet. So each figure has a
ratio that says how much of it is ours, whatever else the machine does.

1. `log`, in rounds: appends to a spool (SQLite alone); landing from it (delta-rs alone); forwarding (kafka-python
   alone); landing from Kafka;
2. `join`: attribution and rewards of a million turns and 300,000 signals;
3. `freeze`: a dataset, and its columns of the lake read and its rows written by Parquet alone;
4. `memory`: the peak of each stage with one and with ten times as much before it;
5. `size`: bytes a token at rest; and what sessions take that land turn by turn, before and after upkeep.

A real broker of one node, started here. Medians over rounds.
"""

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.ingest_turns import DISTINCT, RAW_BYTES, TOKENS, generate, session
from benchmarks.processes import Process
from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.kafka_broker import command, configure, prepare, ready
from pipelines.stack.addresses import free_port

PARTS = ("log", "join", "freeze", "memory", "size")
TIMES = 10
"""How much larger the second backlog is, where memory is measured."""
SESSIONS = 4
"""Agents' sessions that go on beside each other, where their size is measured."""

Seen = dict[str, Any]


def measure(home: Path, parts: list[str], rounds: int, turns: int, joined: int, signals: int, longest: int) -> dict:
    """The JSON's content. `turns` go through the log in each round; `joined` and `signals` through the join; the
    longest session has `longest` turns."""
    found: dict = {}
    if {"log", "memory"} & set(parts):
        with broker(home / "kafka") as bootstrap:
            if "log" in parts:
                found |= log_figures(
                    [through_log(home, bootstrap, turns, ("last", "first")[at % 2]) for at in range(rounds)]
                )
            if "memory" in parts:
                found |= memory(home, bootstrap, turns, joined, signals)
    if "join" in parts:
        found |= join_figures(home, joined, signals)
    if "freeze" in parts:
        found |= freeze_figures(home, rounds, turns)
    if "size" in parts:
        found["bytes_per_token"] = sizes(home, min(turns, DISTINCT))
        found["session_bytes"] = [session_sizes(home, length, length * 1000) for length in (longest // 2, longest)]
    conditions = {"rounds": rounds, "turns": turns, "join_turns": joined, "join_signals": signals}
    return {**found, "conditions": {**conditions, "machine": platform.platform(), "python": platform.python_version()}}


def stage(name: str, **arguments: object) -> Seen:
    """What a stage measured, in a process of its own; said on stderr."""
    line = [sys.executable, "-m", "benchmarks.ingest_stages", name, json.dumps(arguments)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    seen = json.loads(done.stdout.splitlines()[-1])
    told = ", ".join(f"{key} {value:,.1f}" for key, value in seen.items() if isinstance(value, float))
    print(f"{name}: {told}", file=sys.stderr, flush=True)
    return seen


@contextmanager
def broker(home: Path) -> Iterator[str]:
    """A broker's address."""
    libs, port = prepare(), free_port()
    properties = configure(home, port, free_port(), libs)
    process = Process(command(properties, libs), home / "broker.log")
    try:
        process.until(lambda: ready(port))
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def through_log(home: Path, bootstrap: str, turns: int, alone: str) -> dict[str, Seen]:
    """One round: spool, embedded lake, topic, lake; each beside its library alone, which goes `first` or `last` where
    both ship the same bytes; `no`: without them."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        spool, lake, copy = f"{folder}/spool", f"{folder}/lake", f"{folder}/copy"
        seen = {"append": stage("append", spool=spool, turns=turns)}
        seen["land_embedded"] = stage("land", spool=spool, lake=lake)
        if alone != "no":
            seen["sqlite_alone"] = stage("sqlite_alone", folder=f"{folder}/sqlite", turns=turns)
            seen["delta_alone"] = stage("delta_alone", lake=lake, copy=f"{folder}/lake-alone")
            shutil.copytree(spool, copy)
        seen["upkeep"] = stage("upkeep", lake=lake)
        topics = [uuid.uuid4().hex for _ in range(2)]
        if alone == "first":
            seen["produce"] = stage("produce", spool=copy, bootstrap=bootstrap, topic=topics[0])
        seen["forward"] = stage("forward", spool=spool, bootstrap=bootstrap, topic=topics[1])
        if alone == "last":
            seen["produce"] = stage("produce", spool=copy, bootstrap=bootstrap, topic=topics[0])
        kafka = {"bootstrap": bootstrap, "topic": topics[1]}
        seen["land_kafka"] = stage("land", spool=spool, lake=f"{folder}/lake-of-kafka", **kafka)
        for name in ("land_embedded", "land_kafka"):
            if seen[name]["turns"] != turns:
                raise RuntimeError(f"{name} landed {seen[name]['turns']} of {turns} turns")
        return seen


def log_figures(rounds: list[dict[str, Seen]]) -> dict:
    """Medians, and medians of the ratios within rounds."""

    def rate(name: str) -> float:
        return statistics.median(seen[name]["per_s"] for seen in rounds)

    def ratio(name: str, beside: str) -> float:
        return statistics.median(seen[name]["per_s"] / seen[beside]["per_s"] for seen in rounds)

    return {
        "append_turns_per_s": rate("append"),
        "append_p99_ms": statistics.median(seen["append"]["p99_ms"] for seen in rounds),
        "append_ratio": ratio("append", "sqlite_alone"),
        "forward_turns_per_s": rate("forward"),
        "forward_ratio": ratio("forward", "produce"),
        "land_turns_per_s": {"embedded": rate("land_embedded"), "kafka": rate("land_kafka")},
        "land_ratio": {name: ratio(f"land_{name}", "delta_alone") for name in ("embedded", "kafka")},
        "turns_per_cpu_s": {
            name: statistics.median(seen[name]["per_cpu_s"] for seen in rounds)
            for name, one in rounds[0].items()
            if "per_cpu_s" in one
        },
        "rounds": rounds,
    }


def join_figures(home: Path, turns: int, signals: int) -> dict:
    """The join over a lake of its own."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        seen = stage("attribute", lake=f"{folder}/lake", now=made(Path(folder) / "lake", turns, signals))
    states = {"attribution_states": seen["counts"], "attribution_ready": seen["ready"]}
    taken = {"attribution_seconds": seen["seconds"], "attribution_cpu_seconds": seen["cpu_seconds"]}
    return taken | {"attribution_peak_mb": seen["peak_mb"]} | states


def made(lake: Path, turns: int, signals: int) -> float:
    """A lake of so many turns and signals; when the last signal was received."""
    # It loads Delta, and this process is small where the stages are measured.
    from benchmarks.ingest_data import write_lake

    print(f"making a lake of {turns:,} turns and {signals:,} signals", file=sys.stderr, flush=True)
    return write_lake(lake, turns, signals)


def freeze_figures(home: Path, rounds: int, turns: int) -> dict:
    """Datasets of up to `turns` turns from a lake in which more are ready; the join that chooses them comes first."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        lake = Path(folder) / "lake"
        now = made(lake, 4 * turns, 4 * turns)
        rate, alone, ratio = [], [], []
        for at in range(rounds):
            join = stage("attribute", lake=str(lake), now=now)
            frozen = stage("freeze", lake=str(lake), datasets=f"{folder}/datasets-{at}", turns=turns, now=now)
            write_cpu = max(frozen["cpu_seconds"] - join["cpu_seconds"], 0.01)
            rate.append(frozen["rows"] / frozen["seconds"])
            alone.append(frozen["rows"] / write_cpu)
            ratio.append(frozen["parquet"]["cpu_seconds"] / write_cpu)
    return {
        "freeze_turns_per_s": statistics.median(rate),
        "freeze_rows": frozen["rows"],
        "freeze_without_join_turns_per_cpu_s": statistics.median(alone),
        "freeze_parquet_ratio": statistics.median(ratio),
    }


def memory(home: Path, bootstrap: str, turns: int, joined: int, signals: int) -> dict:
    """Peaks of each stage with a backlog of `turns`, and with one that is `TIMES` as large; of the join and of freezing
    with a tenth of the lake, and with all of it. The dataset is of the same size both times."""
    peaks: dict[str, list[float]] = {}
    for times in (1, TIMES):
        seen = through_log(home, bootstrap, turns * times, alone="no")
        with tempfile.TemporaryDirectory(dir=home) as folder:
            lake = Path(folder) / "lake"
            now = made(lake, joined * times // TIMES, signals * times // TIMES)
            seen["attribute"] = stage("attribute", lake=str(lake), now=now)
            few = max(turns // TIMES, 1)
            seen["freeze"] = stage("freeze", lake=str(lake), datasets=f"{folder}/datasets", turns=few, now=now)
        for name, one in seen.items():
            peaks.setdefault(name, []).append(one["peak_mb"])
    growth = {name: large / small for name, (small, large) in peaks.items()}
    return {"memory_growth_10x": growth, "memory_peak_mb": peaks}


def sizes(home: Path, turns: int) -> dict[str, float]:
    """Bytes a token of turns that all differ, texts included; `raw` is int32 ids and float32 logprobs without them."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        spool, lake = Path(folder) / "spool", Path(folder) / "lake"
        stage("append", spool=str(spool), turns=turns)
        stage("land", spool=str(spool), lake=str(lake))
        total = turns * TOKENS
        arrays, texts = column_bytes(lake)
        return {
            "lake": size_of(lake) / total,
            "lake_arrays": arrays / total,
            "lake_texts": texts / total,
            "spool": size_of(spool) / total,
            "json": sum(len(as_json(turn)) for turn in generate(turns)) / total,
            "raw": RAW_BYTES / TOKENS,
        }


def session_sizes(home: Path, turns: int, tokens: int) -> dict[str, float]:
    """Bytes of a session whose prompts grow to `tokens` tokens, texts included. `whole`: each turn as it is, not
    compressed; `once`: each token and each word once; `landed` and `kept`: in the lake, before and after upkeep."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        lake = Path(folder) / "lake"
        stage("land_by_turn", spool=f"{folder}/spool", lake=str(lake), sessions=SESSIONS, turns=turns, tokens=tokens)
        landed = named_bytes(lake)
        stage("upkeep", lake=str(lake))
        kept = named_bytes(lake)
    of_one = list(session(0, turns, tokens))
    said = [len(turn.prompt_ids) + len(turn.output_ids) + len(turn.request) + len(turn.answer) for turn in of_one]
    logprobs = sum(len(turn.logprobs) for turn in of_one)
    sizes = {"whole": logprobs + sum(said), "once": logprobs + said[-1]}
    return {"turns": turns, "tokens": tokens} | sizes | {"landed": landed / SESSIONS, "kept": kept / SESSIONS}


def as_json(turn: Any) -> bytes:
    """A turn as a log of JSON would hold it: arrays as lists of numbers."""
    shown = msgspec.to_builtins(turn)
    for name in ("prompt_ids", "output_ids"):
        shown[name] = unpack_ids(getattr(turn, name)).tolist()
    shown["logprobs"] = [round(value, 6) for value in unpack_logprobs(turn.logprobs).tolist()]
    return msgspec.json.encode(shown)


def size_of(folder: Path) -> int:
    """Bytes of all files below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def named_bytes(lake: Path) -> int:
    """Bytes of the files that the newest version of the turns names."""
    from ingest.lake import TURNS, open_table

    return sum(open_table(lake, TURNS).get_add_actions(flatten=True).column("size_bytes").to_pylist())


def column_bytes(lake: Path) -> tuple[int, int]:
    """Compressed bytes of the arrays and of the texts of all tables of a lake."""
    import pyarrow.parquet as pq

    found: dict[str, int] = {}
    for path in lake.rglob("*.parquet"):
        if "_delta_log" in path.parts:
            continue
        parquet = pq.ParquetFile(path).metadata
        for group in range(parquet.num_row_groups):
            for at in range(parquet.num_columns):
                column = parquet.row_group(group).column(at)
                name = column.path_in_schema.partition(".")[0]
                found[name] = found.get(name, 0) + column.total_compressed_size
    arrays = ("prompt_ids", "output_ids", "logprobs")
    return sum(found.get(name, 0) for name in arrays), sum(found.get(name, 0) for name in ("request", "answer"))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS, help="these parts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20_000, help="through the log in each round")
    parser.add_argument("--join-turns", type=int, default=1_000_000)
    parser.add_argument("--join-signals", type=int, default=300_000)
    parser.add_argument("--session-turns", type=int, default=50, help="of the longest session, 1,000 tokens each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everloop-ingest-") as home:
        counts = (options.turns, options.join_turns, options.join_signals, options.session_turns)
        result = measure(Path(home), options.only, options.rounds, *counts)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "rounds"}, indent=1))


if __name__ == "__main__":
    main()
