"""`POST /v1/feedback` and `/v1/feedback/batch`: what somebody said, or did, about a turn or a session.

    {"target": "turn"|"session"|"session_of_turn", "id": …, "kind": …, "sample"?, "value"?, "text"?, "source"?,
     "idempotency_key"?, "occurred_at"?, "user"?}          a batch: {"items": […]}, all of it or nothing

202 once it is on the spool. It may come before its turn; whether the sender may speak for the turn is decided
when they are joined. A session is named as in `x-everloop-session`; one that has no name there, for it is known by its
conversation, as the session of any of its turns, by that turn's id.

A signal is safe to send again with its `idempotency_key`: the first that came counts. One that says something else gets
its 202, too, for no gateway knows what another one took; the join counts it as conflicting, and reports it. To revise a
signal, send one with another `idempotency_key`, or with none.

`source` is `user`, `application`, `simulator`, or `implicit:<rule>` where the application watched its user and guessed.
The sources of the signals that everloop computes itself are refused: what bears them was computed.
"""

import re
import time
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from ingest.contracts.errors import ContractError
from ingest.contracts.feedback import Feedback, ImplicitRule, Kind
from ingest.contracts.fleet import Key, Role
from ingest.contracts.ids import keyed_hash, new_id
from serving.gateway.dialects.base import parse_object
from serving.gateway.errors import BadRequest, CaptureFailed
from serving.gateway.exchange import Exchange
from serving.gateway.gateway import Gateway
from serving.gateway.sessions import session_hash

MAX_ITEMS = 1000
MAX_BYTES = 4 << 20
_COMPUTED = frozenset(f"implicit:{rule}" for rule in ImplicitRule)
_TARGETS = Literal["turn", "session", "session_of_turn"]
_KNOWN = {"`$.kind`": ", ".join(Kind), "`$.target`": ", ".join(get_args(_TARGETS))}
"""What may stand where: the decoder's own sentences do not say it."""
_SOURCE = re.compile(r"user|application|simulator|implicit:[a-z0-9_.-]{1,64}")


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """One signal as a caller sends it."""

    target: _TARGETS
    id: Annotated[str, Meta(min_length=1, max_length=256)]
    kind: Kind
    sample: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    value: float | None = None
    text: str | None = None
    source: Annotated[str, Meta(extra_json_schema={"pattern": f"^({_SOURCE.pattern})$"})] = "user"
    idempotency_key: str | None = None
    occurred_at: float | None = None
    user: str | None = None


def feedback_of(item: Item, key: Key, secret: bytes, now: float) -> Feedback:
    """The event for `item`, sent with `key`. Raises `BadRequest` with what is missing or out of range."""
    if not _SOURCE.fullmatch(item.source):
        raise BadRequest("`source` must be user, application, simulator or implicit:<rule>.", param="source")
    if item.source in _COMPUTED:
        raise BadRequest(f"The source {item.source} is computed from the traffic, and cannot be sent.", param="source")
    chosen = item.idempotency_key
    feedback = Feedback(
        feedback_id="fb-" + keyed_hash(secret, "feedback", chosen) if chosen else new_id("fb"),
        target=item.target,
        target_id=session_hash(secret, item.id) if item.target == "session" else item.id,
        sample=item.sample,
        kind=item.kind,
        value=item.value,
        text=item.text,
        source=item.source,
        key_id=key.key_id,
        subject=keyed_hash(secret, "subject", item.user) if item.user else "",
        occurred_at=item.occurred_at if item.occurred_at is not None else now,
        received_at=now,
    )
    try:
        feedback.check()
    except ContractError as error:
        raise BadRequest(f"{error}.") from None
    return feedback


async def take_feedback(gateway: Gateway, exchange: Exchange, *, batch: bool) -> None:
    """Records one signal, or a batch of them, and answers 202 with their ids."""
    exchange.request_id = new_id("req")
    key = gateway.authenticate(exchange, Role.FEEDBACK, Role.ADMIN)
    with gateway.limits.hold(key), gateway.places.hold() as held:
        body = parse_object(await exchange.read_body(MAX_BYTES, gateway.settings.body_seconds, held.reserve))
        gateway.recheck(key)
        rows = body.get("items") if batch else [body]
        if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ITEMS:
            raise BadRequest(f"`items` must be a list of 1 to {MAX_ITEMS} signals.", param="items")
        now = time.time()
        events = [feedback_of(_item(row, place), key, gateway.secret, now) for place, row in enumerate(rows)]
        events = await gateway.redactions.feedback(gateway.follower.view.policies.values(), events)
        try:
            await gateway.record(events)
        except CaptureFailed:
            raise CaptureFailed("The feedback could not be recorded: send it again.") from None
        for event in events:
            gateway.metrics.feedback(event.kind)
    ids = [event.feedback_id for event in events]
    await exchange.answer(202, msgspec.json.encode({"feedback_ids": ids} if batch else {"feedback_id": ids[0]}))


def _item(row: object, place: int) -> Item:
    try:
        return msgspec.convert(row, Item)
    except msgspec.ValidationError as error:
        known = next((f"; it is one of {known}" for where, known in _KNOWN.items() if where in str(error)), "")
        raise BadRequest(f"Signal {place}: {error}{known}.") from None
