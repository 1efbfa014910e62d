"""Versions that could not be taken in: each is left alone for a while, longer each time in a row. Pure."""

from collections.abc import Callable

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 600.0


class Refusals:
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def add(self, version: str) -> None:
        """It failed, once more."""
        row = self._counts.get(version, 0)
        self._counts[version] = row + 1
        self._until[version] = self._clock() + min(FIRST_SECONDS * 2**row, LONGEST_SECONDS)

    def forget(self, version: str) -> None:
        """It was taken in: nothing is held against it."""
        self._counts.pop(version, None)
        self._until.pop(version, None)

    def stand(self, version: str) -> bool:
        """Whether to leave it alone for now."""
        return self._clock() < self._until.get(version, float("-inf"))
