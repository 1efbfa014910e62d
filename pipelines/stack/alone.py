"""Becomes a program once nothing is left of its last run: `python -m pipelines.stack.alone FILE COMMAND…`.

A program that starts its server as a child and is killed leaves the child behind, with the port. supervisord starts the
program again, and it could never listen. FILE remembers the process group that the program leads.
"""

import os
import signal
import sys
import time
from pathlib import Path

from pipelines.stack import leftovers

PATIENCE = 10.0
"""Seconds that the kernel may take to free what was killed."""


def clear(remembered: Path, mark: str) -> list[int]:
    """Kills the processes of the remembered group that carry `mark` in their environment; which they were."""
    if not remembered.exists():
        return []
    group = int(remembered.read_text())
    if group == os.getpgrp():
        return []
    found = leftovers.members(group, mark)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while leftovers.members(group, mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def main() -> None:
    remembered, command = Path(sys.argv[1]), sys.argv[2:]
    ended = clear(remembered, f"{leftovers.MARK}={os.environ.get(leftovers.MARK, '')}")
    if ended:
        print(f"ended what was left of the last run: {', '.join(map(str, ended))}", file=sys.stderr, flush=True)
    remembered.write_text(str(os.getpgrp()))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
