"""One stage of ingest, alone in a process: `python -m benchmarks.ingest_stages STAGE JSON-ARGUMENTS`.

Prints one line of JSON: what was measured, and `peak_mb`, the most memory that the process had resident. Imports and
what only prepares a stage are no part of its seconds, but of its memory.
"""

import asyncio
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ingest_turns import POLICY, generate, session
from ingest.config import AttributionSettings, DatasetSettings, LakeSettings, LogSettings, RewardSettings
from ingest.contracts.events import encode_event
from ingest.spool import Spool, folders, read_segment

APPENDERS = 64
"""Turns that wait for their fsync at once: what a gateway under load has."""
_GROUP = 50
"""Rows of one transaction of SQLite alone: about what the spool's writer finds waiting."""
_NEVER = 1e12
"""Seconds: a table that was never looked after counts as looked after in 1970."""


class _Timer:
    """Seconds of the clock and of the processor (all threads of this process) since it was made."""

    def __init__(self) -> None:
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        """What has passed."""
        return {"seconds": time.perf_counter() - self._clock, "cpu_seconds": time.process_time() - self._cpu}

    def rate(self, turns: int) -> dict[str, float]:
        """So many turns took what has passed."""
        passed = self.seconds()
        return {"per_s": turns / passed["seconds"], "per_cpu_s": turns / passed["cpu_seconds"]}


def append(spool: str, turns: int) -> dict[str, float]:
    """Durable appends by one process; how long each waited for its fsync."""
    opened, source = Spool.open(Path(spool)), generate(turns)
    waits: list[float] = []

    async def appender() -> None:
        for turn in source:
            begun = time.perf_counter()
            await opened.append([turn], 60.0)
            waits.append(time.perf_counter() - begun)

    async def all_of_them() -> None:
        await asyncio.gather(*(appender() for _ in range(APPENDERS)))

    timer = _Timer()
    asyncio.run(all_of_them())
    rate = timer.rate(len(waits))
    opened.close()
    waits.sort()
    return rate | {"p99_ms": 1e3 * waits[len(waits) * 99 // 100]}


def sqlite_alone(folder: str, turns: int) -> dict[str, float]:
    """The same bytes into one SQLite file, in groups, each durable; no queue, no encoding, no second thread."""
    payloads = [encode_event(turn) for turn in generate(turns)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(Path(folder) / "alone.db", isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "wal_autocheckpoint=0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
    timer = _Timer()
    for at in range(0, len(payloads), _GROUP):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO events VALUES (?, ?)", enumerate(payloads[at : at + _GROUP], at))
        connection.execute("COMMIT")
    return timer.rate(len(payloads))


def forward(spool: str, bootstrap: str, topic: str) -> dict[str, float]:
    """The forwarder's pass over closed spools."""
    from ingest.forwarder import Forwarder

    turns = sum(segment.last - segment.first + 1 for folder in folders(Path(spool)) for segment in folder.sealed())
    forwarder = Forwarder(Path(spool), _kafka(bootstrap, topic), threading.Event())
    forwarder.connect()
    timer = _Timer()
    forwarder.once()
    rate = timer.rate(turns)
    forwarder.close()
    if left := [folder.spool_id for folder in folders(Path(spool))]:
        raise RuntimeError(f"not all was shipped: {left}")
    return rate


def produce(spool: str, bootstrap: str, topic: str) -> dict[str, float]:
    """kafka-python alone: the same bytes from memory, with the settings and headers of the forwarder's records."""
    from kafka import KafkaProducer

    from ingest.kafka_topic import EventPlace, ensure_topic, event_headers, partition_of

    partitions = ensure_topic(_kafka(bootstrap, topic)).partitions
    records = [
        (folder.spool_id, sequence, payload)
        for folder in folders(Path(spool))
        for segment in folder.sealed()
        for sequence, payload in read_segment(segment.path)
    ]
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        linger_ms=5,
        batch_size=256 << 10,
        compression_type="zstd",
        max_request_size=8 << 20,
    )
    timer = _Timer()
    for spool_id, sequence, payload in records:
        producer.send(
            topic,
            payload,
            key=spool_id.encode(),
            headers=event_headers(EventPlace(sequence, sequence - 1)),
            partition=partition_of(spool_id, partitions),
        )
    producer.flush()
    rate = timer.rate(len(records))
    producer.close()
    return rate


def land(spool: str, lake: str, bootstrap: str = "", topic: str = "") -> dict[str, float]:
    """From the log into a new lake: the embedded one, or with `bootstrap` a topic. Upkeep is a stage of its own."""
    import ingest.kafka_log  # noqa: F401 - which landing imports when it needs it
    from ingest.lake import TURNS, open_table
    from ingest.land import land as land_all

    log = _kafka(bootstrap, topic) if bootstrap else LogSettings()
    open_table(Path(lake), TURNS)
    timer = _Timer()
    report = land_all(log=log, spool=Path(spool), lake=Path(lake), settings=LakeSettings(upkeep_seconds=_NEVER))
    return timer.rate(report.rows[TURNS]) | {"turns": report.rows[TURNS]}


def land_by_turn(spool: str, lake: str, sessions: int, turns: int, tokens: int) -> dict[str, float]:
    """Agents' sessions, all at once: after each turn of all of them a landing."""
    from ingest.land import land as land_all

    timer = _Timer()
    for events in zip(*(session(seed, turns, tokens) for seed in range(sessions)), strict=True):
        opened = Spool.open(Path(spool))
        opened.append_sync(events)
        opened.close()
        land_all(log=LogSettings(), spool=Path(spool), lake=Path(lake), settings=LakeSettings(upkeep_seconds=_NEVER))
    return timer.seconds()


def upkeep(lake: str) -> dict[str, float]:
    """What landing does once an hour: small files become large ones."""
    from ingest.upkeep import upkeep as look_after

    timer = _Timer()
    look_after(Path(lake), LakeSettings(), time.time())
    return timer.seconds()


def delta_alone(lake: str, copy: str) -> dict[str, float]:
    """The rows of a lake written once more by delta-rs alone, from memory, in the same commits."""
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    from ingest.lake import TURNS, open_table

    files = open_table(Path(lake), TURNS).file_uris()
    tables = [pq.read_table(file) for file in files]
    timer = _Timer()
    for table in tables:
        write_deltalake(copy, table, mode="append")
    return timer.rate(sum(table.num_rows for table in tables))


def attribute(lake: str, now: float) -> dict[str, Any]:
    """The join over the whole lake, with the default settings."""
    from ingest.attribution import attribute as attribute_all

    timer = _Timer()
    report = attribute_all(
        lake=Path(lake),
        policy=POLICY,
        settings=AttributionSettings(),
        rewards=RewardSettings(),
        now=now,
        watermark=now,
        used_datasets=Path(lake).parent / "datasets",
    )
    return timer.seconds() | {"counts": report.counts, "ready": report.ready}


def freeze(lake: str, datasets: str, turns: int, now: float) -> dict[str, Any]:
    """A dataset of at most so many turns. Then what Parquet alone takes: to read these columns of the files that hold
    them, and to write the finished rows as they were written. The model of languages is loaded once in a worker's life,
    and no part of it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from ingest.datasets import ROWS, ROWS_FILE
    from ingest.freeze import freeze as freeze_one
    from ingest.lake import TURNS, read
    from ingest.language import language
    from ingest.row_groups import write_groups

    language("It is loaded by now.")
    timer = _Timer()
    report = freeze_one(
        lake=Path(lake),
        datasets=Path(datasets),
        policy=POLICY,
        dataset_id="d1",
        settings=DatasetSettings(max_turns=turns),
        attribution=AttributionSettings(fresh_seconds=1e9, fresh_versions=1000),
        rewards=RewardSettings(),
        now=now,
        watermark=now,
    )
    frozen = timer.seconds() | {"rows": report.rows, "peak_mb": _peak_mb()}
    path = Path(datasets) / POLICY / "d1" / ROWS_FILE
    file, table = pq.ParquetFile(path), read(Path(lake), TURNS)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    columns = [name for name in ROWS.names if name in table.schema.names]
    young = pc.field("finished_at") >= min((pc.min(group["finished_at"]).as_py() for group in groups), default=now)
    timer = _Timer()
    for fragment in table.get_fragments(young):
        for _ in fragment.to_batches(table.schema, columns=[*columns, "answer"]):
            pass
    write_groups(path.with_suffix(".alone"), groups)
    return frozen | {"bytes": path.stat().st_size, "parquet": timer.seconds()}


def _kafka(bootstrap: str, topic: str) -> LogSettings:
    return LogSettings(kind="kafka", bootstrap=bootstrap, topic=topic, partitions=4)


def _peak_mb() -> float:
    """Not by getrusage: that one begins with what the parent had."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1000


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    stage.__name__: stage
    for stage in (append, sqlite_alone, forward, produce, land, land_by_turn, delta_alone, upkeep, attribute, freeze)
}


def main() -> None:
    """The process."""
    found = STAGES[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps({"peak_mb": _peak_mb()} | found))


if __name__ == "__main__":
    main()
