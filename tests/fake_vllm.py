"""vLLM as an engine's agent sees it: a process with the plugin's routes. `python -m tests.fake_vllm PORT VERSION`.

The version's name decides what happens: `broken…` ends at its start, `flaky…` at its first; `infinite…` has
logprobs that are no numbers; swapped in, `rolled…` is rolled back, `refused…` is refused, `stuck…` leaves the
engine unusable; `done…`, `undone…` and `unclear…` break the connection and go on for a moment, the last for good. A
file `crash` ends the process; while a file `damaged` is beside it, the weights measure as others.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec
from aiohttp import web

from ingest.contracts.fleet import Reference, Swap
from ingest.contracts.tap import REQUEST_HEADER
from serving.fleet.swap import EngineInfo, SwapRequest

BUILD = "fake-build"


class FakeVllm:
    """State and handlers."""

    def __init__(self, version: str, damaged: Path) -> None:
        self.version = version
        self.checksum = "damaged" if damaged.exists() else "c"
        self.usable = True
        self.broken = ""
        """The version of a swap whose connection broke, while it goes on."""

    async def state(self, request: web.Request) -> web.Response:
        assert request.headers[REQUEST_HEADER] == os.environ["EVERLOOP_ENGINE_TOKEN"]
        info = EngineInfo(
            version=self.version, build=BUILD, max_model_len=64, usable=self.usable, swapping=bool(self.broken)
        )
        if self.broken.startswith("done"):
            self.version = self.broken
        if not self.broken.startswith("unclear"):
            self.broken = ""
        return _json(info)

    async def score(self, request: web.Request) -> web.Response:
        return _json(
            Reference(
                version=self.version,
                build=BUILD,
                checksum=self.checksum,
                sequences=((1, 2),),
                logprobs=((float("nan") if self.version.startswith("infinite") else -1.0,),),
                noise=0.0,
            )
        )

    async def swap(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=SwapRequest)
        target = body.target.version
        if target.startswith("refused"):
            return web.json_response({"error": "refused it"}, status=422)
        if target.startswith(("done", "undone", "unclear")):
            self.broken = target
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if target.startswith("stuck"):
            self.usable = False
            return web.json_response({"error": "stays paused"}, status=500)
        swap = Swap(
            engine_id=body.engine_id,
            policy=body.policy,
            from_version=self.version,
            to_version=target,
            load="hot",
            started_at=0.0,
            pause_ms=1.0,
            load_ms=1.0,
            verify_ms=1.0,
            total_ms=1.0,
            error="rolled back" if target.startswith("rolled") else "",
        )
        if swap.error:
            return _json(swap, 409)
        self.version = target
        return _json(swap)


def _json(value: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def main(port: int, version: str, crash: Path) -> None:
    """Serves until the file `crash` appears."""
    fake, app = FakeVllm(version, crash.with_name("damaged")), web.Application()
    app.add_routes(
        [
            web.get("/everloop/state", fake.state),
            web.post("/everloop/score", fake.score),
            web.post("/everloop/swap", fake.swap),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.to_thread(end_when, crash)


def end_when(crash: Path) -> None:
    """Waits for the file, removes it, and ends the process."""
    while not crash.exists():
        time.sleep(0.05)
    crash.unlink()
    os._exit(7)


def first(crash: Path) -> bool:
    """Whether this is the first start that asks."""
    started = crash.with_name("started")
    seen = started.exists()
    started.touch()
    return not seen


if __name__ == "__main__":
    if sys.argv[2].startswith("broken") or (sys.argv[2].startswith("flaky") and first(Path(sys.argv[3]))):
        sys.exit(3)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
