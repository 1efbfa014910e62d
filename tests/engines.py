"""Real vLLM engines for tests, one per model and session, started as the agent starts them.

    tied_engine     version t0 of a tied model; t1, t2 beside it (`stale_head` switches the repair of its head off)
    untied_engine   version u0 of an untied model; u1 beside it
    references      what cold loads of t0, t1, u0, u1 measured, by version

`Engine` talks to one: requests with the tap, the plugin's routes.
"""

import asyncio
import json
import os
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from ingest.contracts.fleet import Reference, Swap, Version
from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, STREAM_EVENT, TapRecord, decode_tap
from pipelines.stack.addresses import free_port
from serving.engines.launch import EngineSettings, command, environment
from serving.fleet.swap import EngineInfo
from tests.tiny_models import make_model

TOKEN = "engine-token-of-tests"
POLICY = "assistant"
START_SECONDS = 900
SWITCH = "EVERLOOP_TEST_STALE_HEAD"


@dataclass(frozen=True)
class Answer:
    """A response, the caller's part of it and the tap's."""

    status: int
    body: bytes
    record: TapRecord | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON chunks of an event stream, without `[DONE]`."""
        lines = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Progress:
    """How many chunks of a streamed answer came so far."""

    def __init__(self) -> None:
        self._chunks = 0
        self._came = asyncio.Condition()

    async def came(self) -> None:
        """One more."""
        async with self._came:
            self._chunks += 1
            self._came.notify_all()

    async def grows(self, chunks: int = 8) -> None:
        """Returns when so many more have come."""
        async with self._came:
            enough = self._chunks + chunks
            await self._came.wait_for(lambda: self._chunks >= enough)


class Engine:
    """One running engine."""

    def __init__(self, url: str, root: Path, first: Version) -> None:
        self.url = url
        self.root = root
        self.first = first

    def path(self, version: str) -> str:
        return str(self.root / version)

    async def ask(
        self,
        path: str,
        body: dict[str, Any],
        *,
        tap: bool = True,
        request_id: str | None = None,
        cut_after: int = 0,
        progress: Progress | None = None,
    ) -> Answer:
        """POSTs `body`; with `cut_after` hangs up after so many bytes; tells `progress` of each chunk."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if tap:
            headers[REQUEST_HEADER] = TOKEN
        if request_id:
            headers["X-Request-Id"] = request_id
        body = {"model": POLICY, **body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, json=body, headers=headers) as response,
        ):
            if cut_after:
                await response.content.readexactly(cut_after)
                response.close()
                return Answer(response.status, b"", None)
            data = b""
            async for chunk in response.content.iter_any():
                data += chunk
                if progress is not None:
                    await progress.came()
        if LENGTH_HEADER in response.headers:
            length = int(response.headers[LENGTH_HEADER])
            return Answer(response.status, data[:-length], decode_tap(data[-length:]))
        marker = f"event: {STREAM_EVENT}\ndata: ".encode()
        if marker in data:
            head, tail = data.split(marker)
            return Answer(response.status, head, decode_tap(b64decode(tail.strip())))
        return Answer(response.status, data, None)

    async def plugin(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, bytes]:
        """One of the plugin's routes."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method,
                self.url + path,
                data=None if body is None else msgspec.json.encode(body),
                headers={REQUEST_HEADER: token},
            ) as response,
        ):
            return response.status, await response.read()

    async def state(self) -> EngineInfo:
        status, data = await self.plugin("GET", "/everloop/state")
        assert status == 200, data
        return msgspec.json.decode(data, type=EngineInfo)

    async def score(self) -> Reference:
        status, data = await self.plugin("POST", "/everloop/score", {})
        assert status == 200, data
        return msgspec.json.decode(data, type=Reference)

    async def swap(self, version: str, reference: Reference | None, path: str | None = None) -> tuple[int, Any]:
        """A swap to `version`: status, and the `Swap` or the error's sentence."""
        target = Version(version, path or self.path(version))
        request = {"engine_id": "e1", "policy": POLICY, "target": target, "reference": reference}
        status, data = await self.plugin("POST", "/everloop/swap", request)
        if status in (200, 409):
            return status, msgspec.json.decode(data, type=Swap)
        return status, msgspec.json.decode(data)["error"]


def start(root: Path, version: str, log: Path, *extra: str) -> tuple[subprocess.Popen, Engine]:
    """Starts vLLM with the plugin on `root/version`; returns once it answers."""
    port = free_port()
    served = Version(version, str(root / version))
    settings = EngineSettings(
        engine_id="e1",
        policy=POLICY,
        control="http://127.0.0.1:1",
        port=port,
        url=f"http://127.0.0.1:{port}",
        model=root / version,
        version=version,
        weights_root=root,
        max_model_len=1024,
        max_num_seqs=16,
        extra=extra,
    )
    base = {**os.environ, SWITCH: str(root / "stale-head")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(settings, served, cpu=True),
            env=environment(base, settings, served, TOKEN),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    engine = Engine(settings.url, root, served)
    try:
        asyncio.run(_until_up(engine, process))
    except BaseException as error:
        stop(process)
        raise RuntimeError(f"vLLM did not come up:\n{log.read_text()[-3000:]}") from error
    return process, engine


async def _until_up(engine: Engine, process: subprocess.Popen) -> None:
    async with asyncio.timeout(START_SECONDS):
        while process.poll() is None:
            try:
                await engine.state()
                return
            except (aiohttp.ClientError, AssertionError):
                await asyncio.sleep(0.25)
    raise RuntimeError(f"vLLM ended with {process.returncode}")


def stop(process: subprocess.Popen) -> None:
    """Ends vLLM and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all test models, each named as its version."""
    root = tmp_path_factory.mktemp("weights")
    for seed in range(3):
        make_model(root / f"t{seed}", seed)
    for seed in range(2):
        make_model(root / f"u{seed}", seed, tied=False)
    return root


@pytest.fixture(scope="session")
def tied_engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Version t0 of the tied model, its repair switchable by `stale_head`."""
    log = tmp_path_factory.mktemp("log") / "tied.log"
    process, engine = start(models, "t0", log, "--worker-extension-cls", "tests.stale_head.StaleHead")
    yield engine
    stop(process)


@pytest.fixture(scope="session")
def untied_engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Version u0 of the untied model."""
    process, engine = start(models, "u0", tmp_path_factory.mktemp("log") / "untied.log")
    yield engine
    stop(process)


@pytest.fixture
def stale_head(models: Path) -> Iterator[Path]:
    """While the test runs, the tied engine's head is not repaired after a reload."""
    switch = models / "stale-head"
    switch.touch()
    yield switch
    switch.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def references(
    models: Path, tied_engine: Engine, untied_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Reference]:
    """What a cold load of each version measured. t1 and u1 are loaded in processes of their own, one after the other:
    with the two engines that serve, four would be at once in memory."""
    logs = tmp_path_factory.mktemp("log")

    def cold(version: str) -> Reference:
        process, engine = start(models, version, logs / f"{version}.log")
        try:
            return asyncio.run(engine.score())
        finally:
            stop(process)

    served = {"t0": asyncio.run(tied_engine.score()), "u0": asyncio.run(untied_engine.score())}
    return served | {version: cold(version) for version in ("t1", "u1")}
