"""Bodies of the control process's HTTP interface: keys, policies, engines, assignments.

Gateways poll `GET /v1/snapshot`; engine agents post heartbeats and get their assignment as the answer; the
reconciler sets a policy's desired version; operators create and revoke keys. All with a bearer token.
"""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What a key may do."""

    INFERENCE = "inference"
    FEEDBACK = "feedback"
    ADMIN = "admin"
    EVALUATION = "evaluation"
    """May be answered by engines with the role `evaluation`, which load versions that no user may meet."""


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An API key as control keeps it: SHA-256 of the key, never the key.

    Limits hold for the key wherever it is used: each live gateway worker enforces its share (`serving.gateway.auth`).
    """

    key_id: str
    name: str
    digest: str
    roles: tuple[Role, ...]
    train: bool = True
    requests_per_minute: int | None = None
    concurrency: int | None = None
    created_at: float
    revoked_at: float | None = None


class Version(msgspec.Struct, frozen=True):
    """A weight version and the folder it loads from (a checkpoint's `export/`)."""

    version: str
    path: str


class Redaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What gateways replace in a policy's recorded texts. Never empty: a policy that replaces nothing has none."""

    patterns: tuple[str, ...] = ()
    """Well-known ones, by the names that `serving.patterns` gives them."""
    expressions: dict[str, str] = {}
    """Further regular expressions (RE2), by name."""
    function: str | None = None
    """`module:function`, from text to text; gateways import it."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A policy as gateways know it. `sampling` pins parameters so that its traffic stays trainable."""

    name: str
    desired: Version
    under_evaluation: Version | None = None
    capture: str = "required"
    """`required`: no answer without its record; `best_effort`: the loss is counted."""
    sampling: dict[str, float] = {}
    redaction: Redaction | None = None


class EngineState(StrEnum):
    """Where an engine stands; only `ready` takes new requests."""

    JOINING = "joining"
    """Registered, not yet converged on its assignment."""
    READY = "ready"
    """Converged, probed, in service."""
    SWAPPING = "swapping"
    """Loading its assignment; requests in flight go on, and new ones wait in the engine while it pauses."""
    DRAINING = "draining"
    """Takes nothing new, finishes what it has."""
    FAILED = "failed"
    """Could not load or verify its assignment: out of service."""
    LOST = "lost"
    """No heartbeat within the limit."""


ENGINE_TRANSITIONS: dict[EngineState, frozenset[EngineState]] = {
    EngineState.JOINING: frozenset(
        {EngineState.READY, EngineState.SWAPPING, EngineState.FAILED, EngineState.LOST, EngineState.DRAINING}
    ),
    EngineState.READY: frozenset(
        {EngineState.SWAPPING, EngineState.DRAINING, EngineState.FAILED, EngineState.LOST, EngineState.JOINING}
    ),
    EngineState.SWAPPING: frozenset({EngineState.READY, EngineState.FAILED, EngineState.LOST, EngineState.JOINING}),
    EngineState.DRAINING: frozenset({EngineState.LOST, EngineState.JOINING, EngineState.FAILED}),
    EngineState.FAILED: frozenset(
        {EngineState.SWAPPING, EngineState.READY, EngineState.LOST, EngineState.JOINING, EngineState.DRAINING}
    ),
    EngineState.LOST: frozenset({EngineState.JOINING, EngineState.READY, EngineState.SWAPPING, EngineState.FAILED}),
}


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version that an engine was to serve and failed to take in; it tries again, later each time in a row."""

    version: str
    error: str
    attempts: int = 1
    """In a row, since its agent started."""
    standing: bool = True
    """Whether it leaves the version alone for now; then it would try again."""


class Engine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine as control knows it. `url` is the vLLM server's, without a trailing slash."""

    engine_id: str
    policy: str
    url: str
    token: str
    """What the gateway sends as `x-everloop-tap`, and the agent to the plugin's routes."""
    role: str = "serve"
    """`serve` or `evaluation`."""
    state: EngineState = EngineState.JOINING
    version: str = ""
    build: str = ""
    max_model_len: int = 0
    media: bool = False
    """Whether its model takes images, sound or video."""
    error: str = ""
    refusal: Refusal | None = None
    last_seen: float = 0.0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine's agent says of its engine, every second. `version` is what it really serves."""

    policy: str
    url: str
    token: str
    role: str
    state: EngineState
    version: str
    build: str = ""
    max_model_len: int = 0
    media: bool = False
    """Whether its model takes images, sound or video."""
    error: str = ""
    """For people: why it does not serve what it should."""
    refusal: Refusal | None = None
    """What it failed to take in last, until it serves what it was told to."""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """How a cold load of `version` behaves on one kind of engine: what a hot swap must reproduce.

    `sequences` are fixed token ids; `logprobs` the log-probability of each of their tokens after the first.
    """

    version: str
    build: str
    checksum: str
    sequences: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    noise: float
    """Largest difference seen between two scorings of the same load."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the engine should serve now."""

    target: Version | None = None
    """None: what it serves; the desired version waits until it is this engine's turn."""
    reference: Reference | None = None
    """What a swap in place must reproduce; without it the target is loaded cold, in a new process."""


class Swap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One swap of one engine: how long users' requests stood still, and whether it was proven."""

    engine_id: str
    policy: str
    from_version: str
    to_version: str
    load: str
    started_at: float
    pause_ms: float
    load_ms: float
    verify_ms: float
    total_ms: float
    checksum_equal: bool | None = None
    logprob_difference: float | None = None
    error: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway needs, in one body. `revision` changes when anything in it does."""

    revision: int
    keys: tuple[Key, ...]
    policies: tuple[Policy, ...]
    engines: tuple[Engine, ...]
    opted_out: tuple[str, ...] = ()
    """Subjects, as turns name them (keyed hash), whose turns must not be trained on."""


WORKER_HEADER = "x-everloop-worker"
"""Which gateway worker asks for the snapshot: a name that it gives itself when it starts."""
WORKERS_HEADER = "x-everloop-workers"
"""How many of them live, in the answer; absent until control has been up long enough to know."""
