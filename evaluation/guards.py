"""Guards: a challenger that scores better may still not have become worse in form.

Each guard compares a mean over all answers with the champion's, and once more with a fixed anchor: the values of
the first champion ever evaluated on these questions, by rule the base. So small losses, each within its bound against
a champion, cannot add up over promotions. The anchor is a file per part of the suite, written once.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from evaluation.config import GuardBounds
from evaluation.measures import MEASURES
from ingest.contracts.errors import ContractError
from ingest.contracts.files import write_atomically
from ingest.contracts.verdict import Guard


class Anchor(msgspec.Struct, frozen=True):
    """The measures of `version` on the suite with this digest."""

    version: str
    suite: str
    values: dict[str, float]


def measure(answers: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The mean of each measure over (question, answer) pairs."""
    pairs = list(answers)
    return {name: sum(f(q, a) for q, a in pairs) / max(1, len(pairs)) for name, f in MEASURES.items()}


def compare(
    known: Mapping[str, float], challenger: Mapping[str, float], bounds: GuardBounds, suffix: str = ""
) -> tuple[Guard, ...]:
    """One guard line per bound; `known` is the champion's measures, or the anchor's (`suffix` "@anchor")."""
    mean, limits = challenger["length"], (bounds.shortest * known["length"], bounds.longest * known["length"])
    lines = [
        Guard("shortest" + suffix, known["length"], mean, limits[0], mean >= limits[0]),
        Guard("longest" + suffix, known["length"], mean, limits[1], mean <= limits[1] or known["length"] == 0),
    ]
    for name in MEASURES:
        if name != "length":
            limit = known[name] + getattr(bounds, name)
            lines.append(Guard(name + suffix, known[name], challenger[name], limit, challenger[name] <= limit))
    return tuple(lines)


def load_anchor(path: Path) -> Anchor | None:
    """The anchor in a file, None before the first evaluation; raises `ContractError` when the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Anchor)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ContractError(f"{path}: not an anchor ({error}); restore it, guards depend on it") from error


def save_anchor(path: Path, anchor: Anchor) -> None:
    """Writes the anchor; from here on it stays."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(anchor), indent=1) + b"\n")
