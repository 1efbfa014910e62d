"""Processes of a stack that outlived their supervisor.

A supervisor that was killed cannot end its children. Each process of a stack carries the home folder in its
environment, and shares the supervisor's session: by these two marks `up` finds what a dead stack left, and `down`
proves that nothing is left. Linux only (`/proc`).
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "EVERLOOP_STACK"
_PF_EXITING = 0x4
"""In a process's flags: the kernel has begun to take it apart (include/linux/sched.h)."""


def find(home: Path, session: int | None = None, proc: Path = Path("/proc")) -> list[int]:
    """Processes of this user that belong to the stack of `home`, this process left out.

    `session` is the last supervisor's process id: its session counts while no living process leads it, for a
    number that was given again has a living leader.
    """
    mark = f"{MARK}={home}".encode()
    leaderless = session is not None and not _leads(proc / str(session))
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if entry.stat().st_uid != os.getuid() or _is_dead(entry):
                continue
            marked = mark in (entry / "environ").read_bytes().split(b"\0")
            if marked or (leaderless and _session(entry) == session):
                found.append(int(entry.name))
    return sorted(found)


def members(group: int, mark: str, proc: Path = Path("/proc")) -> list[int]:
    """Processes of this user in a process group that carry `mark` (NAME=VALUE) in their environment."""
    found = []
    for entry in proc.iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid() and not _is_dead(entry):
                marked = mark.encode() in (entry / "environ").read_bytes().split(b"\0")
                if marked and int(_stat(entry)[2]) == group:
                    found.append(int(entry.name))
    return sorted(found)


def end(pids: list[int], grace: float = 10.0) -> None:
    """Asks these processes to end, then kills those that are still there after `grace` seconds."""
    for pid in pids:
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(_alive(Path(f"/proc/{pid}")) for pid in pids):
        time.sleep(0.1)
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def name_of(pid: int) -> str:
    """What the process runs: its module, for a message."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"-m" in words:
            return words[words.index(b"-m") + 1].decode()
        return Path(words[0].decode()).name
    return "gone"


def _stat(entry: Path) -> list[str]:
    # The name in parentheses may hold spaces: fields are counted from its end.
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _session(entry: Path) -> int:
    return int(_stat(entry)[3])


def _is_dead(entry: Path) -> bool:
    return _stat(entry)[0] in "ZX"


def _leads(entry: Path) -> bool:
    # A killed leader closes its socket before it is a zombie: from its first step out it counts as gone.
    with suppress(OSError):
        return not _is_dead(entry) and not int(_stat(entry)[6]) & _PF_EXITING
    return False


def _alive(entry: Path) -> bool:
    with suppress(OSError):
        return not _is_dead(entry)
    return False


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
