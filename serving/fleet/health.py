"""What one gateway has seen of its engines since the last snapshot: who just failed, and for how long to avoid it.

Control decides who is in service, from heartbeats, within seconds. This bridges those seconds: an engine
that refused a connection or broke an answer is asked last for a moment, longer each time in a row.

An engine that answers with an error of its own (HTTP 500) is there, and may have failed on the request: a bug that one
body runs into. Only where another engine takes the same request is the error held against it; otherwise one caller's
body could have all engines suspected, one after another.
"""

from collections.abc import Callable

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 8.0


class Suspicion:
    """Engines that failed lately. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def failed(self, engine_id: str) -> None:
        """The engine did not answer, or broke off."""
        row = self._failures.get(engine_id, 0)
        self._failures[engine_id] = row + 1
        self._until[engine_id] = self._clock() + min(FIRST_SECONDS * 2**row, LONGEST_SECONDS)

    def outdone(self, engine_id: str, by: str) -> None:
        """The engine answered with an error of its own to a request that the engine `by` then took."""
        if engine_id != by:
            self.failed(engine_id)

    def answered(self, engine_id: str) -> None:
        """The engine finished an answer: nothing is held against it."""
        if engine_id in self._failures:
            del self._failures[engine_id], self._until[engine_id]

    def suspected(self, engine_id: str) -> bool:
        """Whether to ask others first."""
        return self._until.get(engine_id, 0.0) > self._clock() if self._until else False
