"""Worker processes: forked by a parent that starts each again that dies, and ends them all when it is asked to.

The parent takes its signals one at a time, between its other acts (`sigtimedwait`): none can come between a fork and
the note of it, and none is lost while a worker waits to be started again. A worker dies with its parent.

What keeps a worker from its first start ends all of them, for whoever started the gateway can mend it. What keeps it
from a later one (a full disk) may pass, and the others serve: it is tried again, later each time in a row.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

log = logging.getLogger(__name__)
RESTART_SECONDS = 1.0
LONGEST_SECONDS = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_CANNOT_START = 2
_PR_SET_PDEATHSIG = 1
_A_WHILE = 3600.0


class CannotStart(Exception):
    """Why the gateway does not start, in one sentence."""


def supervise(workers: int, work: Callable[[int], None], restart_seconds: float = RESTART_SECONDS) -> None:
    """Runs `work(index)` in a process for each worker until SIGTERM or SIGINT.

    Raises `CannotStart` as a worker did that was started for the first time.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    reasons, tell = os.pipe()
    running: dict[int, int] = {}
    """Workers by process id."""
    due = dict.fromkeys(range(workers), time.monotonic())
    """When those that are not running are to be started."""
    pauses = dict.fromkeys(range(workers), restart_seconds)
    starts: Counter[int] = Counter()
    stopping = failed = False
    while running or due:
        for index in [index for index, at in due.items() if at <= time.monotonic()]:
            del due[index]
            starts[index] += 1
            running[_fork(index, work, tell if starts[index] == 1 else None)] = index
        wait = min(due.values(), default=time.monotonic() + _A_WHILE) - time.monotonic()
        got = signal.sigtimedwait(_SIGNALS, max(0.0, wait))
        for index, code in _ended(running):
            if code == _CANNOT_START and starts[index] == 1:
                failed = True
            elif not stopping:
                pauses[index] = min(2 * pauses[index], LONGEST_SECONDS) if code == _CANNOT_START else restart_seconds
                log.error("worker %d died (%d): it is started again in %g s", index, code, pauses[index])
                due[index] = time.monotonic() + pauses[index]
        if failed or (got is not None and got.si_signo != signal.SIGCHLD):
            due.clear()
            if not stopping:
                for pid in running:
                    os.kill(pid, signal.SIGTERM)
            stopping = True
    if failed:
        raise CannotStart(os.read(reasons, 4096).decode().splitlines()[0])


def _ended(running: dict[int, int]) -> list[tuple[int, int]]:
    """Takes the workers that have ended out of `running`; each with its exit code, negative for a signal."""
    ended = []
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        ended.append((running.pop(pid), os.waitstatus_to_exitcode(status)))
    return ended


def _fork(index: int, work: Callable[[int], None], tell: int | None) -> int:
    """The new worker's process id. Why it cannot start goes to the pipe `tell`, or to the log where there is none."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            work(index)
        code = 0
    except CannotStart as error:
        code = _CANNOT_START
        if tell is None:
            log.error("worker %d cannot start: %s", index, error)
        else:
            os.write(tell, f"{error}\n".encode())
    finally:
        sys.stderr.flush()
        os._exit(code)
