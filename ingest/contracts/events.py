"""The events of the log, and their wire form: MessagePack, one event a record.

A record's place is `(spool_id, sequence)`, given by the spool that first held it; it is the record's
identity wherever it travels, and what landing deduplicates by.
"""

import contextlib

import msgspec

from ingest.contracts.erasure import Erasure
from ingest.contracts.errors import ContractError
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.contracts.versions import current, refuse_newer

Event = Turn | Feedback | Erasure


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Stands on the log in the place of an event whose bytes are gone, so that nobody waits for it."""

    reason: str


_encoder = msgspec.msgpack.Encoder()
_LOST = _encoder.encode(Lost(""))[:-1]
"""How each begins, whatever its reason."""
_decoder = msgspec.msgpack.Decoder(Event | Lost)
VERSIONS = {kind.__struct_config__.tag: current(kind) for kind in (Turn, Feedback, Erasure)}
"""Kind of event → the newest version of it that this code reads."""


class _Head(msgspec.Struct):
    """What can be read of an event of any version."""

    type: str
    schema: int = 1


_head_decoder = msgspec.msgpack.Decoder(_Head)


class Record(msgspec.Struct, frozen=True):
    """One event as it stands on the log: where, and its bytes."""

    spool_id: str
    sequence: int
    payload: bytes


def encode_event(event: Event | Lost) -> bytes:
    """Its bytes on the log."""
    return _encoder.encode(event)


def is_lost(payload: bytes) -> bool:
    """Whether it stands in the place of an event."""
    return payload.startswith(_LOST)


def decode_event(payload: bytes) -> Event:
    """The event in `payload`; raises `ContractError` where it is none, was lost, or is a newer version's."""
    try:
        event = _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            head = _head_decoder.decode(payload)
            refuse_newer(head.type, head.schema, VERSIONS.get(head.type, head.schema))
        raise ContractError(f"not an event: {error}") from error
    if isinstance(event, Lost):
        raise ContractError(f"lost: {event.reason}")
    tag = event.__struct_config__.tag
    refuse_newer(tag, event.schema, VERSIONS[tag])
    if not isinstance(event, Erasure):
        event.check()
    return event
