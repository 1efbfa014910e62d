"""Versions that could not be taken in: each is left alone for a while, longer each time in a row. Pure."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from ingest.contracts.fleet import Refusal

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 600.0


class _Failed(msgspec.Struct, frozen=True):
    error: str
    attempts: int
    until: float


class Refusals:
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[str, _Failed] = {}

    def add(self, version: str, error: str) -> None:
        """It failed, once more."""
        before = self._failed.pop(version, None)
        attempts = before.attempts + 1 if before else 1
        self._failed[version] = _Failed(error, attempts, self._clock() + _wait(attempts))

    def forget(self, version: str) -> None:
        """It was taken in: nothing is held against it."""
        self._failed.pop(version, None)

    def clear(self) -> None:
        """Nothing that failed is asked for any more."""
        self._failed.clear()

    def restart(self) -> None:
        """Each wait begins anew: the engine was out of service until now."""
        for version, failed in self._failed.items():
            self._failed[version] = replace(failed, until=self._clock() + _wait(failed.attempts))

    def stand(self, version: str) -> bool:
        """Whether to leave it alone for now."""
        return version in self._failed and self._clock() < self._failed[version].until

    def last(self) -> Refusal | None:
        """What failed last and is not forgotten."""
        if not self._failed:
            return None
        version, failed = next(reversed(self._failed.items()))
        return Refusal(version=version, error=failed.error, attempts=failed.attempts, standing=self.stand(version))


def _wait(attempts: int) -> float:
    return min(FIRST_SECONDS * 2.0 ** (attempts - 1), LONGEST_SECONDS)
