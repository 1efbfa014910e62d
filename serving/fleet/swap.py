"""What an engine's agent and its plugin say to each other about weights, and when a swap counts as proven.

Proven means: behaves as a cold load of the same version on the same kind of engine. Two things are compared
with the `Reference` that such a load left behind: the engine's checksum of its loaded tensors, and its
logprobs on fixed sequences. Checksums alone miss what is derived from the tensors and kept beside them (a tied
head's packed copy on the CPU build); logprobs alone miss tensors that the sequences hardly use.
"""

from math import isfinite

import msgspec

from ingest.contracts.fleet import Reference, Version

FLOOR = 1e-4
"""Smallest difference of a logprob, in nats, that is held against a swap, whatever noise the cold load showed.

The same load scores bitwise alike here (noise 0 in every measurement); 1e-4 leaves room for engines whose
kernels add in changing order, and lies far below what one rounded bf16 logit moves (0.03 at a logit of 8)."""

TEXTS = (
    "The capital of France is Paris, and the river that runs through it is called the Seine. In 1889 the tower was "
    "finished, and a year later 1,200 people had climbed it on foot.",
    "def mean(values):\n    total = 0\n    for x in values:\n        total += x\n    return total / len(values)\n",
    '{"name": "lamp", "price": 12.5, "tags": ["home", "light"], "stock": {"here": 3, "elsewhere": 0}}',
    "Q: How do I reset my password?\nA: Open the settings, choose Security, then Reset password, and follow the link.",
)
"""Prose, code, JSON and dialogue: an engine scores the first `SEQUENCE_TOKENS` tokens of each."""

SEQUENCE_TOKENS = 48


class SwapRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /everloop/swap; the answer is a `Swap`. Without a reference of its build it is refused."""

    engine_id: str
    policy: str
    target: Version
    reference: Reference | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /everloop/state. `checksum` is empty until the weights were measured once."""

    version: str
    build: str
    max_model_len: int
    media: bool = False
    """Whether the model takes images, sound or video."""
    checksum: str = ""
    swapping: bool = False
    in_flight: int = 0
    """HTTP calls of the gateway that have not ended."""
    usable: bool = True
    """False after a swap that could be neither proven nor undone: only a new process helps."""


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /everloop/score; the answer is a `Reference`. Without `sequences`: those of `TEXTS`."""

    sequences: tuple[tuple[int, ...], ...] | None = None
    repeats: int = 2


Logprobs = tuple[tuple[float, ...], ...]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """How the weights in an engine behave now: its checksum, and logprobs[i] of sequences[i][1:]."""

    checksum: str
    sequences: tuple[tuple[int, ...], ...]
    logprobs: Logprobs


def difference(a: Logprobs, b: Logprobs) -> float:
    """Largest absolute difference of two scorings, in nats; infinite where shapes differ or a value is no number."""
    if [len(row) for row in a] != [len(row) for row in b]:
        return float("inf")
    gaps = [abs(x - y) for left, right in zip(a, b, strict=True) for x, y in zip(left, right, strict=True)]
    return max(gaps, default=0.0) if all(isfinite(gap) for gap in gaps) else float("inf")


def noise(scorings: list[Logprobs]) -> float:
    """Largest difference between the first of several scorings of one load and each other one."""
    return max((difference(scorings[0], other) for other in scorings[1:]), default=0.0)


def objection(measured: Measurement, reference: Reference) -> str:
    """Why `measured` is not a cold load's behaviour as `reference` has it; empty where it is."""
    if measured.checksum != reference.checksum:
        return f"the engine's checksum {measured.checksum[:12]} is not the cold load's {reference.checksum[:12]}"
    gap, bound = difference(measured.logprobs, reference.logprobs), max(reference.noise, 0.0) + FLOOR
    if not gap <= bound:
        return f"logprobs on the fixed sequences differ by up to {gap:.2g} from the cold load's, more than {bound:.2g}"
    return ""


def contradiction(load: Reference, kept: Reference) -> str:
    """Why a cold load does not behave as an earlier one of the same version and build, `kept`; empty where it does.

    Where they scored different sequences, as releases of everloop may, the checksums alone decide: what they miss comes
    of reloading, and neither was reloaded.
    """
    logprobs = load.logprobs if load.sequences == kept.sequences else kept.logprobs
    return objection(Measurement(checksum=load.checksum, sequences=kept.sequences, logprobs=logprobs), kept)
