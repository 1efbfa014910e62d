"""The spool: what was acknowledged is read back exactly once, whatever happened to its writer."""

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest

from ingest.contracts.erasure import Erasure
from ingest.contracts.events import decode_event
from ingest.spool import (
    CommitTimeout,
    Spool,
    SpoolClosed,
    SpoolFolder,
    SpoolFull,
    adopt,
    low_watermark,
    read_segment,
    segment,
)


def erasure(name: str) -> Erasure:
    return Erasure(erasure_id=name, target="subject", digest=name, requested_at=1.0)


def sealed_events(folder: SpoolFolder) -> list[tuple[int, str]]:
    return [
        (sequence, decode_event(payload).erasure_id)
        for segment in folder.sealed()
        for sequence, payload in read_segment(segment.path)
    ]


def until(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


async def test_concurrent_appends_share_transactions_and_are_read_back_in_order(tmp_path: Path):
    spool = Spool.open(tmp_path)
    commits = []
    write = spool._active.write
    spool._active.write = lambda first, payloads: (commits.append(len(payloads)), write(first, payloads))[1]  # type: ignore[method-assign]
    answers = await asyncio.gather(*(spool.append([erasure(f"e{i}"), erasure(f"f{i}")], 10) for i in range(200)))
    spool.close()

    acknowledged = [(answer[0], f"e{i}") for i, answer in enumerate(answers)]
    acknowledged += [(answer[1], f"f{i}") for i, answer in enumerate(answers)]
    assert sealed_events(spool.folder) == sorted(acknowledged)
    assert [sequence for sequence, _ in sorted(acknowledged)] == list(range(1, 401))
    assert len(commits) < 100, "group commit: fewer transactions than appends"
    assert spool.folder.closed()


def test_a_full_segment_is_sealed_and_sequences_go_on(tmp_path: Path):
    spool = Spool.open(tmp_path, segment_bytes=200, segment_seconds=3600)
    for i in range(20):
        assert spool.append_sync([erasure(f"event-{i:02d}")]) == [i + 1]
    until(lambda: len(spool.folder.sealed()) >= 3)
    assert not spool.folder.closed()
    spool.close()
    segments = spool.folder.sealed()
    assert [s.first for s in segments[1:]] == [s.last + 1 for s in segments[:-1]]
    assert sealed_events(spool.folder) == [(i + 1, f"event-{i:02d}") for i in range(20)]
    assert spool.folder.sealed(after=20) == []


def test_an_idle_spool_seals_by_age_and_moves_its_watermark(tmp_path: Path):
    spool = Spool.open(tmp_path, segment_seconds=0.1)
    spool.append_sync([erasure("only")])
    appended = time.time()
    until(lambda: spool.folder.sealed() != [])
    until(lambda: low_watermark(tmp_path) >= appended)
    assert sealed_events(spool.folder) == [(1, "only")]
    spool.close()


def test_the_watermark_waits_for_what_is_not_sealed(tmp_path: Path):
    spool = Spool.open(tmp_path, segment_seconds=3600)
    before = time.time()
    spool.append_sync([erasure("not sealed")])
    time.sleep(1.2)
    assert low_watermark(tmp_path) <= before
    spool.close()
    assert low_watermark(tmp_path) > before, "a closed spool holds nothing back"


async def test_what_was_appended_in_the_same_turn_of_the_loop_is_committed_by_a_close(tmp_path: Path):
    spool = Spool.open(tmp_path)
    append = asyncio.ensure_future(spool.append([erasure("last")], 10))
    asyncio.get_running_loop().call_soon(spool.close)  # after the append, before its call of the writer
    assert await append == [1]
    assert sealed_events(spool.folder) == [(1, "last")]


def test_append_after_close_is_refused(tmp_path: Path):
    spool = Spool.open(tmp_path)
    spool.close()
    with pytest.raises(SpoolClosed):
        spool.append_sync([erasure("late")])


def test_a_full_spool_refuses_and_takes_again_when_bytes_are_gone(tmp_path: Path):
    spool = Spool.open(tmp_path, segment_seconds=0.1, max_bytes=600_000)
    accepted = 0
    while spool.room > 21_000:
        spool.append_sync([erasure("x" * 10_000)])
        accepted += 1
    assert accepted > 2
    with pytest.raises(SpoolFull):
        spool.append_sync([erasure("x" * 300_000)])
    until(lambda: sum(s.last - s.first + 1 for s in spool.folder.sealed()) == accepted)
    for sealed in spool.folder.sealed():
        sealed.path.unlink()
    until(lambda: spool.room > 40_000)
    spool.append_sync([erasure("x" * 10_000)])
    spool.close()


async def test_a_slow_disk_is_a_timeout_that_says_whether_the_events_were_withdrawn(tmp_path: Path):
    spool = Spool.open(tmp_path)
    write = spool._active.write
    spool._active.write = lambda *rows: (time.sleep(0.5), write(*rows))[1]  # type: ignore[method-assign]
    first = asyncio.create_task(spool.append([erasure("taken")], 0.2))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(spool.append([erasure("queued")], 0.2))
    with pytest.raises(CommitTimeout) as taken:
        await first
    with pytest.raises(CommitTimeout) as queued:
        await second
    assert (taken.value.recorded, queued.value.recorded) == (None, False)
    spool.close()
    assert [name for _, name in sealed_events(spool.folder)] == ["taken"]


def test_a_segment_that_could_not_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spool = Spool.open(tmp_path, segment_seconds=0.05)
    with monkeypatch.context() as full:
        full.setattr(segment, "_SCHEMA", "no disk has room for this")
        for name in ("first", "second", "third"):
            spool.append_sync([erasure(name)])
            time.sleep(0.2)
    spool.close()
    assert sorted(path.name for path in spool.folder.path.glob("*.db*")) == [s.path.name for s in spool.folder.sealed()]
    assert [name for _, name in sealed_events(spool.folder)] == ["first", "second", "third"]


def test_what_cannot_be_sealed_now_is_sealed_later_and_holds_back_the_rest(tmp_path: Path):
    spool = Spool.open(tmp_path, segment_seconds=0.1)
    seal, tries = spool._active.seal, []

    def seal_when_there_is_room():
        tries.append(spool.folder.sealed())
        if len(tries) < 3:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return seal()

    spool._active.seal = seal_when_there_is_room  # type: ignore[method-assign]
    spool.append_sync([erasure("first")])
    until(lambda: len(tries) >= 1)
    spool.append_sync([erasure("second")])
    spool.close()
    until(lambda: len(tries) >= 1)
    adopt(tmp_path)
    assert tries[:3] == [[]] * len(tries[:3])
    assert sealed_events(spool.folder) == [(1, "first"), (2, "second")]


def test_a_folder_that_is_done_goes_with_what_crashes_left_in_it(tmp_path: Path):
    spool = Spool.open(tmp_path)
    spool.append_sync([erasure("a")])
    spool.close()
    [segment] = spool.folder.sealed()
    (spool.folder.path / ".shipped.123.partial").touch()
    assert not spool.folder.remove_if_done()
    segment.path.unlink()
    assert spool.folder.remove_if_done()
    assert not spool.folder.path.exists()
