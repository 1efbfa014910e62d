"""One holder at a time; a second takes over when the lease has run out."""

import sqlite3
import threading
from pathlib import Path

from pipelines.lease import Lease, holder_of


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_second_scheduler_takes_over_after_expiry(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (Lease(tmp_path / "db", "scheduler", ttl=10, clock=clock) for _ in range(2))
    assert first.acquire()
    assert not second.acquire()
    clock.now += 9
    assert first.renew()
    clock.now += 9
    assert not second.acquire()
    assert holder_of(tmp_path / "db", "scheduler", clock.now) == first.holder
    clock.now += 2
    assert holder_of(tmp_path / "db", "scheduler", clock.now) is None
    assert second.acquire()
    assert not first.renew()
    assert not first.acquire()


def test_a_late_holder_whom_nobody_replaced_keeps_it(tmp_path: Path) -> None:
    clock = Clock()
    lease = Lease(tmp_path / "db", "scheduler", ttl=10, clock=clock)
    assert lease.acquire()
    clock.now += 60
    assert lease.renew()


def test_a_released_lease_is_free_at_once(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (Lease(tmp_path / "db", "scheduler", ttl=10, clock=clock) for _ in range(2))
    assert first.acquire()
    second.release()
    assert not second.acquire()
    first.release()
    assert second.acquire()


def test_a_standby_stops_waiting_when_asked(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (Lease(tmp_path / "db", "scheduler", ttl=10, clock=clock) for _ in range(2))
    assert first.acquire()
    stop = threading.Event()
    stop.set()
    assert not second.wait(stop)


def test_a_holder_hears_that_its_lease_was_lost(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (Lease(tmp_path / "db", "scheduler", ttl=0.04, clock=clock) for _ in range(2))
    assert first.acquire()
    clock.now += 1
    assert second.acquire()
    lost, stop = threading.Event(), threading.Event()
    thread = first.keep(stop, lost.set)
    assert lost.wait(10)
    thread.join(10)
    assert not thread.is_alive()


def test_a_holder_that_cannot_renew_gives_up_after_the_leases_life(tmp_path: Path, monkeypatch) -> None:
    lease = Lease(tmp_path / "db", "scheduler", ttl=0.2)
    assert lease.acquire()

    def full_disk() -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(lease, "renew", full_disk)
    lost = threading.Event()
    lease.keep(threading.Event(), lost.set)
    assert lost.wait(30)
