"""The gateway's follower of control: what it makes of answers that control would not give."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from ingest.contracts.fleet import WORKERS_HEADER, Snapshot
from serving.gateway import snapshot
from serving.gateway.snapshot import ControlUnreachable, Follower


class Control:
    """Answers with revision 1, 2, …, each with the next of `said` workers while there are any."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)
        self.polls = 0
        self.garbage = b""
        """What it answers instead."""
        self.late: dict[int, float] = {}
        """Seconds before the answer to a poll, by its number."""

    async def answer(self, request: web.Request) -> web.Response:
        self.polls += 1
        number = self.polls
        await asyncio.sleep(self.late.get(number, 0.0))
        told = Snapshot(revision=number, keys=(), policies=(), engines=())
        headers = {WORKERS_HEADER: self.said.pop(0)} if self.said else {}
        return web.Response(body=self.garbage or msgspec.json.encode(told), headers=headers)


@asynccontextmanager
async def listening(control: Control) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/snapshot", control.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def followed(follower: Follower, revision: int) -> None:
    async with asyncio.timeout(60):
        while follower.view.revision < revision:
            await follower.changed(60)


@pytest.mark.parametrize("wrong", ["many", "0", "-1", "1.5", "²", "9" * 5000])
async def test_what_is_no_number_of_workers_keeps_no_snapshot_out(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = Control(wrong, wrong, "3", wrong, wrong)
    async with listening(control) as url, Follower(url, "token", tmp_path / "saved", 0.001, workers=4) as follower:
        assert (follower.view.revision, follower.workers) == (1, 4)
        await followed(follower, 6)
        assert follower.workers == 3
    assert caplog.text.count("is no number of workers") == 2
    assert "control is away" not in caplog.text


async def test_where_control_gives_no_snapshot_the_one_that_was_kept_serves(tmp_path: Path) -> None:
    saved, control = tmp_path / "saved", Control()
    control.garbage = b"{}"
    async with listening(control) as url:
        with pytest.raises(ControlUnreachable, match="ValidationError"):
            await Follower(url, "token", saved, 0.001).__aenter__()
        saved.write_bytes(msgspec.json.encode(Snapshot(revision=7, keys=(), policies=(), engines=())))
        async with Follower(url, "token", saved, 3600) as follower:
            assert follower.view.revision == 7


async def test_an_answer_that_does_not_come_is_not_waited_for_long_and_slow_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "PATIENCE_SECONDS", 0.1)
    control = Control()
    control.late = {2: 3600, 4: 0.3, 5: 0.3, 6: 0.3}  # 4 and 5 are late, and 6 is not by then
    async with listening(control) as url, Follower(url, "token", tmp_path / "saved", 0.001) as follower:
        await followed(follower, 3)
        await followed(follower, 6)


async def test_whatever_goes_wrong_control_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(Control()) as url, Follower(url, "token", tmp_path / "saved", 0.001) as follower:
        view, failed = snapshot.View, asyncio.Event()

        def fails(found: Snapshot) -> None:
            failed.set()
            raise KeyError("el-secret")

        monkeypatch.setattr(snapshot, "View", fails)
        await failed.wait()
        monkeypatch.setattr(snapshot, "View", view)
        await followed(follower, follower.view.revision + 1)
    assert caplog.text.count("control is away (KeyError at ") == 1
    assert "el-secret" not in caplog.text
