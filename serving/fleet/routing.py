"""Which engine answers: rendezvous hashing with bounded load, a pure function.

The same conversation goes to the same engine while the set of engines stands, so that its prefix stays
cached; an engine that joins or leaves moves only its own share; and no engine carries more than
`HEADROOM` times the mean, whatever the hashes say. Gateways need not agree on anything to route alike.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from ingest.contracts.fleet import Engine

HEADROOM = 1.25


def weight(engine_id: str, affinity: str) -> bytes:
    """The engine's standing for `affinity`: the greatest among engines is asked first."""
    return hashlib.blake2b(affinity.encode(), key=engine_id.encode()[:64], digest_size=8).digest()


def choose(
    engines: Sequence[Engine],
    affinity: str,
    loads: Mapping[str, int],
    avoid: Callable[[str], bool] = lambda engine_id: False,
) -> Engine | None:
    """The engine for `affinity` among `engines`, None where there is none.

    `loads` are requests in flight by engine id. Engines that `avoid` names serve only when nothing else does.
    """
    willing = [engine for engine in engines if not avoid(engine.engine_id)] or list(engines)
    if len(willing) <= 1:
        return willing[0] if willing else None
    bound = ceil(HEADROOM * (1 + sum(loads.get(engine.engine_id, 0) for engine in willing)) / len(willing))
    ranked = sorted(willing, key=lambda engine: weight(engine.engine_id, affinity), reverse=True)
    return next((engine for engine in ranked if loads.get(engine.engine_id, 0) < bound), ranked[0])
