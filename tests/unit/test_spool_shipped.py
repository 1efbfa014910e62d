"""`ack = "broker"`: an append returns once the broker has it, and says so when the broker is away."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest.spool import BrokerBehind, Spool, SpoolError, SpoolFolder
from tests.log_events import forget


@contextmanager
def forwarder(folder: SpoolFolder, takes: threading.Event) -> Iterator[None]:
    """Notes that everything sealed is shipped, and removes it, while it `takes`."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.005):
            for segment in folder.sealed() if takes.is_set() else []:
                folder.write_shipped(segment.last)
                segment.path.unlink()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def up() -> threading.Event:
    found = threading.Event()
    found.set()
    return found


async def test_an_append_returns_when_the_broker_has_it(tmp_path: Path):
    spool = Spool.open(tmp_path, ack="broker")
    waiting = asyncio.ensure_future(spool.append([forget("a")], 60))
    await asyncio.to_thread(until, lambda: spool.folder.sealed())
    assert not waiting.done(), "it is on the disk, and not acknowledged"
    with forwarder(spool.folder, up()):
        assert await waiting == [1]
        answers = await asyncio.gather(*(spool.append([forget(str(i))], 60) for i in range(200)))
        assert sorted(sequence for [sequence] in answers) == list(range(2, 202))
        assert spool.folder.shipped() == 201
        assert not spool.behind
    spool.close()


async def test_a_broker_that_is_away_is_waited_for_once_and_noticed_when_it_is_back(tmp_path: Path):
    spool, takes = Spool.open(tmp_path, ack="broker"), threading.Event()
    with forwarder(spool.folder, takes):
        with pytest.raises(BrokerBehind, match="does not acknowledge"):
            await spool.append([forget("a")], 0.3)
        assert spool.behind
        with pytest.raises(BrokerBehind):
            await spool.append([forget("b")], 3600)  # at once
        takes.set()
        await asyncio.to_thread(until, lambda: not spool.behind)
        assert await spool.append([forget("c")], 60) == [3]
        assert spool.folder.shipped() == 3, "what was not acknowledged in time is shipped all the same"
    spool.close()


async def test_what_waits_when_the_spool_closes_is_answered_when_its_folder_is_shipped_and_gone(tmp_path: Path):
    spool = Spool.open(tmp_path, ack="broker")
    waiting = asyncio.ensure_future(spool.append([forget("a")], 60))
    await asyncio.sleep(0)
    await asyncio.to_thread(spool.close)
    assert not waiting.done()
    shutil.rmtree(spool.folder.path)  # the forwarder removes a closed spool that it has shipped
    assert await waiting == [1]


async def test_what_was_lost_on_its_way_to_the_broker_is_told_to_those_alone_who_wait_for_it(tmp_path: Path):
    spool = Spool.open(tmp_path, ack="broker")
    waiting = [asyncio.ensure_future(spool.append([forget(f"{n}-a"), forget(f"{n}-b")], 60)) for n in range(3)]
    await asyncio.to_thread(until, lambda: sum(s.last - s.first + 1 for s in spool.folder.sealed()) == 6)
    spool.folder.note_lost(4)
    spool.folder.write_shipped(6)
    first, second, third = await asyncio.gather(*waiting, return_exceptions=True)
    assert (first, third) == ([1, 2], [5, 6])
    assert isinstance(second, SpoolError)
    assert "has not got it" in str(second)
    for segment in spool.folder.sealed():
        segment.path.unlink()
    await asyncio.to_thread(spool.close)
    assert spool.folder.remove_if_done()


async def test_what_was_lost_is_told_even_where_the_folder_went_before_anybody_looked(tmp_path: Path):
    spool = Spool.open(tmp_path, ack="broker")
    waiting = [asyncio.ensure_future(spool.append([forget(name)], 60)) for name in ("a", "b")]
    await asyncio.sleep(0)
    await asyncio.to_thread(spool.close)
    spool.folder.note_lost(2)
    for segment in spool.folder.sealed():
        segment.path.unlink()
    assert spool.folder.remove_if_done()
    first, second = await asyncio.gather(*waiting, return_exceptions=True)
    assert first == [1]
    assert isinstance(second, SpoolError)
    assert "has not got it" in str(second)
