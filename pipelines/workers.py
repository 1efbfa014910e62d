"""Heavy stages run in resident worker processes, one per family, so that imports are paid once.

    ingest      landing, attribution, gate (DuckDB, Delta, Great Expectations)
    trainer     DeepSpeed, with an environment that suits it
    promotion   MLflow and the evaluation

A worker is spawned, imports what its stage needs, logs as its parent does, and ends when its parent does. A call names
its function ("trainer.stage:train") and travels as plain values; what comes back is JSON-like, and an error comes back
as its name, text and attributes: the parent imports nothing heavy, not even to unpickle. A worker that is killed is
replaced and its call made again, a bounded number of times: stages are idempotent.

Invariant: on one machine, one call of a family runs at a time, whoever makes it (a lock file per family).
"""

import fcntl
import importlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec

from ingest.contracts.process_logs import are_structured, structured
from pipelines.errors import StageFailed
from pipelines.records import Stage

log = logging.getLogger(__name__)

ATTEMPTS = 2
"""How often a call is made when its worker is killed under it."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "ingest": ("ingest.land", "ingest.attribution", "ingest.freeze", "ingest.gate"),
    "trainer": ("trainer.stage",),
    "promotion": ("promotion.registry", "evaluation.stage"),
}
"""The modules each family imports ahead."""

# Big allocations come from an arena that is not given back: 133 → 202 answer tokens/s, measured on two cores.
TRAINER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}


class Report(msgspec.Struct, frozen=True):
    """Where a stage's progress goes: the run history at `database`."""

    database: Path
    run_id: str
    stage: Stage


class Workers:
    """The worker processes of this process. `locks` is a folder for the lock files."""

    def __init__(self, locks: Path, environments: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._locks = locks
        self._environments = environments or {}
        self._pools: dict[str, ProcessPoolExecutor] = {}
        self._closed = False
        self._guard = threading.Lock()
        locks.mkdir(parents=True, exist_ok=True)

    def call(self, family: str, target: str, *, report: Report | None = None, **arguments: Any) -> Any:
        """Calls `module:function` in the family's worker; its value as JSON-like builtins.

        With `report` the function also gets `progress`, a callable that takes a dict. Raises `StageFailed` with the
        class name of what the function raised, or `WorkerDied`.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._submit(family, target, report, arguments).result()
            except BrokenProcessPool:
                self._discard(family)
                if self._closed:
                    raise StageFailed("WorkerDied", f"{target} was abandoned: the process was asked to stop") from None
                log.warning("the %s worker died in %s (attempt %d of %d)", family, target, attempt, ATTEMPTS)
        raise StageFailed(
            "WorkerDied",
            f"the {family} worker died {ATTEMPTS} times in {target}, killed or out of memory: see `everloop doctor` "
            "and at the kernel's log",
        )

    def warm(self, families: Mapping[str, tuple[str, ...]] = FAMILIES) -> list[Future]:
        """Starts the workers and lets them import their modules; the futures end when they have."""
        return [
            self._submit(family, f"{__name__}:import_modules", None, {"modules": modules})
            for family, modules in families.items()
        ]

    def pids(self) -> dict[str, list[int]]:
        """The worker processes by family."""
        return {family: list(pool._processes or ()) for family, pool in self._pools.items()}

    def close(self) -> None:
        """Ends the workers now; a call in progress raises `StageFailed`."""
        self._closed = True
        for family in list(self._pools):
            self._discard(family)

    def _submit(self, family: str, target: str, report: Report | None, arguments: dict) -> "Future[Any]":
        with self._guard:
            if self._closed:
                raise StageFailed("WorkerDied", f"{target} was not begun: the process was asked to stop")
            pool = self._pools.get(family)
            if pool is None:
                context = multiprocessing.get_context("spawn")
                pool = ProcessPoolExecutor(
                    max_workers=1, mp_context=context, initializer=_initialise, initargs=(are_structured(),)
                )
                self._pools[family] = pool
            # The worker is spawned inside submit, and the allocator reads its settings when a process starts.
            with _environment(self._environments.get(family, {})):
                return pool.submit(_invoke, self._locks / f"{family}.lock", target, report, arguments)

    def _discard(self, family: str) -> None:
        pool = self._pools.pop(family, None)
        if pool is None:
            return
        # The public way, kill_workers, comes with Python 3.14.
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)


def import_modules(modules: tuple[str, ...]) -> None:
    """In the worker: imports ahead of the first call. A module that is missing will say so when it is called."""
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)


def plain(value: Any) -> Any:
    """A value as it would come back from JSON: structs, dataclasses, models, numbers of numpy and paths included."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encodable))


def _encodable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value.item() if hasattr(value, "item") else str(value)


def _initialise(log_lines: bool) -> None:
    if log_lines:
        structured()
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it tells of every attempt; the last one raises
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()


def _invoke(lock: Path, target: str, report: Report | None, arguments: dict) -> Any:
    with lock.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        try:
            module, name = target.split(":")
            function = getattr(importlib.import_module(module), name)
            if report is not None:
                arguments = arguments | {"progress": _progress(report)}
            return plain(function(**arguments))
        except Exception as error:
            # Still under the lock: an erasure is a call as well, and then cleans the log of the ids that this names.
            log.warning("%s raised %s", target, type(error).__name__, exc_info=True)
            # An error class of another package may not unpickle, and one that does not breaks the pool.
            details = {key: value for key, value in vars(error).items() if not key.startswith("_")}
            raise StageFailed(type(error).__name__, str(error) or type(error).__name__, _json_like(details)) from None


def _progress(report: Report) -> Any:
    from pipelines.runs import Runs

    runs = Runs(report.database)
    return lambda values: runs.progress(report.run_id, report.stage, plain(values))


def _json_like(details: dict) -> dict:
    try:
        return plain(details)
    except (TypeError, ValueError):
        return {key: str(value) for key, value in details.items()}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
