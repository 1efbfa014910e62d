"""Where the broker's acknowledgement counts (`ack = "broker"`): a third thread that watches how far a spool has come.

The forwarder notes in the spool's folder what the broker acknowledged, and in the place of which events something else;
who waits for that is answered from here. What was committed waits in order. A folder that is gone was closed, and
shipped to its end; what of it was lost is known even then, for the file that says so is open from the start. Once
somebody has waited in vain, the broker is `behind`, until it acknowledges again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from ingest.spool.folder import SpoolFolder

SEGMENT_SECONDS = 0.02
"""A segment is sealed, and so can be shipped, at this age."""
_LOOK_SECONDS = 0.005
_BEHIND_LOOK_SECONDS = 0.05


class Shipped:
    """Answers in the order of sequences. `answer` is called by its thread, with the sequences that were lost."""

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        self._lost = folder.open_lost()
        self._waiting: deque[tuple[int, Callable[[set[int]], None]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.behind = False
        """Whether somebody waited in vain, and the broker has acknowledged nothing since."""
        self._thread = threading.Thread(target=self._run, name="spool-shipped", daemon=True)
        self._thread.start()

    def when(self, sequence: int, answer: Callable[[set[int]], None]) -> None:
        """Calls `answer` once the broker has everything up to `sequence`."""
        with self._changed:
            self._waiting.append((sequence, answer))
            self._changed.notify()

    def close(self) -> None:
        """Nothing more will wait; what does is still answered while the process lives."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    self._lost.close()
                    return
            try:
                upto = self._folder.shipped() if self._folder.path.exists() else self._waiting[-1][0]
                lost = self._lost_by_now() if self._waiting[0][0] <= upto else set()
            except (OSError, ValueError):
                upto, lost = 0, set()
            while self._waiting and self._waiting[0][0] <= upto:
                self.behind = False
                self._waiting.popleft()[1](lost)
            time.sleep(_BEHIND_LOOK_SECONDS if self.behind else _LOOK_SECONDS)

    def _lost_by_now(self) -> set[int]:
        self._lost.seek(0)
        return {int(line) for line in self._lost}
