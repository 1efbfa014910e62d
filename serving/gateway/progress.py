"""What one turn carries from step to step while it is in progress."""

import asyncio
import time
from contextlib import suppress

from ingest.contracts.fleet import Engine, Key, Policy, Role
from ingest.contracts.ids import keyed_hash
from serving.gateway.dialects.base import Ask, Dialect
from serving.gateway.errors import BadRequest, Forbidden
from serving.gateway.exchange import EVENTS, Exchange, Headers
from serving.gateway.gateway import Gateway
from serving.gateway.records import Caller
from serving.gateway.renames import Renames
from serving.gateway.sessions import Conversation, native_session, session_hash

ARMS = {"champion": "serve", "evaluation": "evaluation"}
"""Arms that a caller may name, and the role of the engines that answer them."""
LEFT_SECONDS = 10.0
"""How long an engine may take to end the answer of a caller that left: its place and its key's are held meanwhile."""
MOST_NAMED = 20
"""How many names of what an engine did not get are told to the caller."""
_CONTROLS = bytes((*range(32), 127))
"""What no header may hold."""


class Progress:
    """One turn: what its request says, where it is answered, and what its answer ends with."""

    def __init__(self, gateway: Gateway, dialect: Dialect, policy: Policy, ask: Ask, caller: Caller) -> None:
        self._gateway = gateway
        self.dialect = dialect
        self.policy = policy
        self.ask = ask
        self.caller = caller
        self.request_id = caller.turn_id.removeprefix(dialect.id_prefix)
        """What the engine makes the answer's id of, and knows the request by."""
        self.role = ARMS[caller.arm]
        self.version: str | None = None
        """The only version that may answer, where the caller names one."""
        self.affinity = caller.session or caller.conversation.opening
        self.engine: Engine
        self.deadline = asyncio.get_running_loop().time() + gateway.settings.turn_seconds
        """When the turn has taken too long, in the loop's time."""
        self.timeout: asyncio.Timeout | None = None
        """What waits for it, or did last."""
        self.left = False
        self.status = 200
        self.streams = False
        self.content_type = EVENTS
        self.tail = b""
        """The end of the answer, held back until the turn is committed."""
        self.served_version = ""
        names = {"model": (policy.name, ask.model), "id": (dialect.engine_prefix + self.request_id, caller.turn_id)}
        self.renamed = Renames({field: name for field, name in names.items() if name[0] != name[1]})
        """The engine's bytes with the model name that the caller asked for, and the turn's id."""
        self._told = 0
        self._aborting: asyncio.Task[None] | None = None

    @property
    def overdue(self) -> bool:
        """Whether the turn has taken too long."""
        return asyncio.get_running_loop().time() >= self.deadline

    def engine_body(self) -> bytes:
        """The request as `engine` is to get it."""
        return self.dialect.engine_body(
            self.ask,
            served_model=self.policy.name,
            turn_id=self.caller.turn_id,
            longest=self.engine.max_model_len,
            media=self.engine.media,
            salt=keyed_hash(self._gateway.secret, "cache", self.caller.key.key_id),
            pinned=self.policy.sampling,
        )

    def dropped(self) -> int:
        """How many names of what an engine does not get came since this was asked last."""
        told, self._told = self._told, len(self.ask.dropped)
        return self._told - told

    def caller_left(self) -> None:
        """Step 6: nobody reads the answer any more, so the engine is told to end it; its record still comes, soon."""
        self.left = True
        self.abort()
        self._end_by(asyncio.get_running_loop().time() + LEFT_SECONDS)

    def end_now(self) -> None:
        """The process ends: the turn has no more time, and is recorded and answered as one that took too long."""
        self._end_by(asyncio.get_running_loop().time())

    def _end_by(self, deadline: float) -> None:
        self.deadline = min(self.deadline, deadline)
        if self.timeout is not None:
            with suppress(RuntimeError):  # nobody waits at the moment: whoever does next, meets the deadline
                self.timeout.reschedule(self.deadline)

    def abort(self) -> None:
        """Tells the engine, if one was asked already, to end its answer."""
        if self._aborting is None and hasattr(self, "engine"):
            self._aborting = asyncio.create_task(self._gateway.engines.abort(self.engine, self.request_id))

    def headers(self, version: str) -> Headers:
        """What the gateway says of the turn; of a stream, the version that the engine reported when it began."""
        headers = [(b"x-everloop-turn-id", self.caller.turn_id.encode())]
        if version:
            headers.append((b"x-everloop-version", version.encode("latin-1", "replace")))
        if self.ask.dropped:
            headers.append((b"x-everloop-dropped", _listed(self.ask.dropped)))
        return headers


def begin(
    gateway: Gateway, exchange: Exchange, dialect: Dialect, key: Key, turn_id: str, ask: Ask, policy: Policy
) -> Progress:
    """Names a turn's subject, session, arm and version. Raises `BadRequest`, `Forbidden`."""
    arm = exchange.header(b"x-everloop-arm") or "champion"
    if arm not in ARMS:
        raise BadRequest(f"x-everloop-arm must be one of: {', '.join(ARMS)}.")
    if arm == "evaluation" and Role.EVALUATION not in key.roles:
        raise Forbidden("x-everloop-arm: evaluation needs a key with the role evaluation.")
    train = (exchange.header(b"x-everloop-train") or "yes").strip().lower()
    if train not in ("yes", "no"):
        raise BadRequest("x-everloop-train must be yes or no.")
    session = native_session(exchange) or ask.session
    subject = gateway.subject(ask.user)
    caller = Caller(
        turn_id=turn_id,
        policy=policy.name,
        dialect=dialect,
        key=key,
        subject=subject,
        session=session_hash(gateway.secret, session) if session else None,
        conversation=Conversation(gateway.secret, key.key_id + subject, ask.messages),
        prompts=ask.prompts,
        samples=ask.samples,
        arm=arm,
        trains=key.train and train == "yes",
        recorded=ask.recorded,
        started_at=time.time(),
    )
    turn = Progress(gateway, dialect, policy, ask, caller)
    turn.version = exchange.header(b"x-everloop-version") or None
    return turn


def _listed(names: list[str]) -> bytes:
    """The names for a header, the first few of many."""
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (", ".join(names[:MOST_NAMED]) + more).encode("ascii", "replace").translate(None, _CONTROLS)[:1000]
