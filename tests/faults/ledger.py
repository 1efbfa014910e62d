"""The ledger as its readers see it: what was acknowledged to callers, when, and how much of it each fault saw.

That nothing was lost says little where little was asked: a run goes on only when each fault has seen load, and its
report tells how much.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import msgspec


class Line(NamedTuple):
    """One acknowledgement; `at` is monotonic."""

    kind: str
    """`turn` or `feedback`."""
    id: str
    at: float


class Seen(msgspec.Struct, kw_only=True):
    """What was acknowledged between faults of one kind and whatever fault came next."""

    faults: int = 0
    turns: int = 0
    feedback: int = 0
    fewest: int | None = None
    """Turns and feedback together, of the fault that saw the least."""


class Ledger:
    """A file that callers append to. Every method takes up what is new in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """All whole lines, in their order."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read += len(data)
            for line in data.decode().splitlines():
                kind, name, at = line.split()
                self._lines.append(Line(kind, name, float(at)))
        return self._lines

    def goes_on(self, since: int, turns: int, feedback: int) -> bool:
        """Whether so many of each came after the first `since` lines."""
        new = [line.kind for line in self.lines()[since:]]
        return new.count("turn") >= turns and new.count("feedback") >= feedback

    def ids(self, kind: str) -> set[str]:
        """Of all turns, or all feedback."""
        return {line.id for line in self.lines() if line.kind == kind}

    def silence(self) -> float:
        """Seconds between two acknowledgements, at most."""
        times = sorted(line.at for line in self.lines())
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def seen(lines: list[Line], faults: list[tuple[float, str]]) -> dict[str, Seen]:
    """By kind of fault. `faults`: when each was over (monotonic), and its kind, in their order."""
    found: dict[str, Seen] = {}
    ends = [at for at, _ in faults[1:]] + [float("inf")]
    for (begin, kind), end in zip(faults, ends, strict=True):
        kinds = [line.kind for line in lines if begin <= line.at < end]
        one = found.setdefault(kind, Seen())
        one.faults += 1
        one.turns += kinds.count("turn")
        one.feedback += kinds.count("feedback")
        one.fewest = min(len(kinds), len(kinds) if one.fewest is None else one.fewest)
    return found
