"""The events of the log, and their wire form: MessagePack, one event a record.

A record's place is `(spool_id, sequence)`, given by the spool that first held it; it is the record's
identity wherever it travels, and what landing deduplicates by.
"""

import msgspec

from ingest.contracts.erasure import Erasure
from ingest.contracts.errors import ContractError
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn

Event = Turn | Feedback | Erasure

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Event)


class Record(msgspec.Struct, frozen=True):
    """One event as it stands on the log: where, and its bytes."""

    spool_id: str
    sequence: int
    payload: bytes


def encode_event(event: Event) -> bytes:
    """The event's bytes on the log."""
    return _encoder.encode(event)


def decode_event(payload: bytes) -> Event:
    """The event in `payload`; raises `ContractError` where it is none."""
    try:
        event = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise ContractError(f"not an event: {error}") from error
    if not isinstance(event, Erasure):
        event.check()
    return event
