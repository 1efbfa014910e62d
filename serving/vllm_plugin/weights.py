"""Swaps the weights of a running engine, and lets nothing sample from weights that were not proven.

check the folder → pause (keep) → measure what serves now, if that is not known → load → repair the tied head → measure
and compare with the reference → label → resume. The engine stands still from pause to resume, users' requests
wait in it, and their KV is computed anew with the new weights. Whatever fails after the load brings the weights
before back, which must measure as they did; an engine that can do neither stays paused and says `usable: false`
(decision 0002).

The `Engine` below is what this needs of vLLM's client, no more, so that the order of things is tested without one.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ingest.contracts.fleet import Reference, Swap, Version
from serving.fleet import folder as folders
from serving.fleet.swap import (
    EngineInfo,
    Logprobs,
    Measurement,
    ScoreRequest,
    SwapRequest,
    difference,
    noise,
    objection,
)


class Engine(Protocol):
    """The part of vLLM's `EngineClient` that swaps need."""

    async def pause_generation(self, *, mode: str, clear_cache: bool = True) -> None: ...
    async def resume_generation(self) -> None: ...
    async def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple = (), kwargs: dict | None = None
    ) -> list[Any]: ...
    async def compute_weight_checksums(self) -> list[dict[str, str]]: ...
    async def update_weight_version(self, new_version: str) -> None: ...


class SwapRefused(ValueError):
    """The swap was not begun: says why. The engine serves on, untouched."""


class EngineUnusable(RuntimeError):
    """The engine is paused for good, after a swap that could be neither proven nor undone."""


class Weights:
    """The weights of one engine: which version they are, how they behave, and how to change them."""

    def __init__(
        self,
        engine: Engine,
        served: Version,
        root: Path,
        build: str,
        max_model_len: int,
        media: bool,
        sequences: Sequence[Sequence[int]],
    ) -> None:
        self._engine = engine
        self._served = served
        self._root = root
        self._build = build
        self._max_model_len = max_model_len
        self._media = media
        self._sequences = tuple(tuple(ids) for ids in sequences)
        self._measured: Measurement | None = None
        self._lock = asyncio.Lock()
        self._swapping = False
        self._proven = True
        """False from the first byte loaded until the weights in the engine are known to be `served` again."""

    def info(self) -> EngineInfo:
        """What GET /everloop/state says."""
        return EngineInfo(
            version=self._served.version,
            build=self._build,
            max_model_len=self._max_model_len,
            media=self._media,
            checksum=self._measured.checksum if self._measured else "",
            swapping=self._swapping,
            usable=self._proven or self._swapping,
        )

    async def measure_reference(self, request: ScoreRequest) -> Reference:
        """How the weights that serve now behave, with the noise of `request.repeats` scorings of them."""
        sequences = request.sequences or self._sequences
        async with self._lock:
            self._require_usable()
            async with self._paused():
                self._measured = await self._measure(sequences)
                again = [await self._score(sequences) for _ in range(request.repeats - 1)]
            return Reference(
                version=self._served.version,
                build=self._build,
                checksum=self._measured.checksum,
                sequences=self._measured.sequences,
                logprobs=self._measured.logprobs,
                noise=noise([self._measured.logprobs, *again]),
            )

    async def swap(self, request: SwapRequest) -> Swap:
        """Serves `request.target` from now on, proven against `request.reference`; the same version is a no-op.

        A failed swap answers with `error`, and the version before serves again. Raises `SwapRefused` where it was
        not begun, `EngineUnusable` where the version before could not be brought back.
        """
        async with self._lock:
            self._require_usable()
            record = Swap(
                engine_id=request.engine_id,
                policy=request.policy,
                from_version=self._served.version,
                to_version=request.target.version,
                load="hot",
                started_at=time.time(),
                pause_ms=0.0,
                load_ms=0.0,
                verify_ms=0.0,
                total_ms=0.0,
            )
            if request.target.version == self._served.version:
                return record
            reference, folder = self._admit(request)
            self._swapping, began = True, time.perf_counter()
            try:
                async with self._paused():
                    record = await self._exchange(request.target, folder, reference, record)
            finally:
                self._swapping = False
            standstill = _ms_since(began)
            return msgspec.structs.replace(record, pause_ms=standstill, total_ms=standstill)

    def _require_usable(self) -> None:
        if not self._proven:
            raise EngineUnusable("this engine stays paused after a swap that could not be undone: restart it")

    def _admit(self, request: SwapRequest) -> tuple[Reference, Path]:
        target, reference = request.target, request.reference
        if reference is None or reference.version != target.version:
            raise SwapRefused(
                f"no reference of {target.version}: load it cold, which measures one, before it is swapped in hot"
            )
        if reference.build != self._build:
            raise SwapRefused(
                f"the reference of {target.version} is of build {reference.build}, this engine is {self._build}"
            )
        try:
            folder = folders.within(target.path, self._root)
            folders.check(folder, like=Path(self._served.path))
        except folders.FolderError as error:
            raise SwapRefused(str(error)) from error
        return reference, folder

    async def _exchange(self, target: Version, folder: Path, reference: Reference, record: Swap) -> Swap:
        """Load, prove, label; or bring back what served before. The engine is paused."""
        before = self._measured
        if before is None or before.sequences != reference.sequences:
            before = await self._measure(reference.sequences)
        self._proven = False
        began = time.perf_counter()
        try:
            await self._load(folder)
            record = msgspec.structs.replace(record, load_ms=_ms_since(began))
            began = time.perf_counter()
            measured = await self._measure(reference.sequences)
            record = msgspec.structs.replace(
                record,
                verify_ms=_ms_since(began),
                checksum_equal=measured.checksum == reference.checksum,
                logprob_difference=difference(measured.logprobs, reference.logprobs),
            )
            problem = objection(measured, reference)
            if not problem:
                await self._engine.update_weight_version(target.version)
                self._served, self._measured, self._proven = Version(target.version, str(folder)), measured, True
                return record
        except Exception as error:  # noqa: BLE001 — whatever the engine raised, the weights before must come back
            problem = f"the engine failed at it ({type(error).__name__}: {error})"
        await self._bring_back(before, problem, target)
        sentence = f"{target.version} was not taken in: {problem}; {self._served.version} serves on"
        return msgspec.structs.replace(record, error=sentence)

    async def _bring_back(self, before: Measurement, problem: str, target: Version) -> None:
        try:
            await self._load(Path(self._served.path))
            self._measured = await self._measure(before.sequences)
            same = self._measured.checksum == before.checksum and self._measured.logprobs == before.logprobs
            await self._engine.update_weight_version(self._served.version)
            failure = "" if same else "it does not measure as it did"
        except Exception as error:  # noqa: BLE001 — any failure here has the same end: the engine must not serve
            failure = f"the engine failed at it ({type(error).__name__}: {error})"
        if failure:
            raise EngineUnusable(
                f"{target.version} was not taken in: {problem}; {self._served.version} could not be brought back: "
                f"{failure}. The engine stays paused: restart it"
            )
        self._proven = True

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None, None]:
        """The engine stands still and holds no KV; afterwards it goes on, unless what it holds is not proven."""
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        try:
            yield
        finally:
            if self._proven:
                await self._engine.resume_generation()

    async def _load(self, folder: Path) -> None:
        await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        await self._engine.collective_rpc("everloop_repair")

    async def _measure(self, sequences: Sequence[Sequence[int]]) -> Measurement:
        digests: dict[str, str] = {}
        for worker in await self._engine.compute_weight_checksums():
            digests.update(worker)
        checksum = hashlib.sha256(msgspec.json.encode(digests, order="sorted")).hexdigest()
        return Measurement(
            checksum=checksum,
            sequences=tuple(tuple(ids) for ids in sequences),
            logprobs=await self._score(sequences),
        )

    async def _score(self, sequences: Sequence[Sequence[int]]) -> Logprobs:
        answers = await self._engine.collective_rpc(
            "everloop_score", kwargs={"sequences": [list(ids) for ids in sequences]}
        )
        scored = next((rows for rows in answers if rows is not None), None)
        if scored is None:
            raise RuntimeError("no worker of this engine returned logprobs")
        return tuple(tuple(row) for row in scored)


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000.0
