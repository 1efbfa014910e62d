"""What the engine plugin recorded of one HTTP call, on its way to the gateway.

It travels at the end of the response, only to a caller that sends `REQUEST_HEADER: <the gateway's token>`:

- a JSON response: the bytes of the record follow the body; `LENGTH_HEADER` says how many they are, and
  `Content-Length` includes them;
- an event stream: one more event after the last, `event: everloop` with the record in base64 as its data.

An error response (4xx, 5xx) carries it in the same way, if anything was sampled.
"""

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.turn import Span
from ingest.contracts.versions import current, refuse_newer, version

REQUEST_HEADER = "x-everloop-tap"
LENGTH_HEADER = "x-everloop-tap-length"
STREAM_EVENT = "everloop"


class TapSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One output of one engine request. Arrays are packed; spans tile `output_ids`.

    `finish` is the engine's own word (`stop`, `length`, `abort`, …), None where it never finished.
    """

    index: int
    output_ids: bytes = b""
    logprobs: bytes = b""
    weight_versions: tuple[Span, ...] = ()
    finish: str | None = None


class TapCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to the engine: its prompt, its samples, and the sampling parameters actually used."""

    request_id: str
    prompt_ids: bytes = b""
    samples: tuple[TapSample, ...] = ()
    sampling: dict[str, float | int | bool | str | None] = {}
    constrained: str | None = None
    """What made the distribution differ from the model's own, beyond `sampling` and the ids: `grammar`, `media`, …"""


class TapRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that one HTTP call made the engine do. `engine_build` names build, dtype and layout."""

    schema: int = version(1)
    engine_build: str
    first_token_at: float | None = None
    calls: tuple[TapCall, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TapRecord)
_KNOWN = current(TapRecord)
encode_tap = _encoder.encode


def decode_tap(data: bytes) -> TapRecord:
    """The record in `data`; raises `ContractError` where it is none, or a newer version's."""
    try:
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ContractError(f"not a tap record: {error}") from error
    refuse_newer("tap record", record.schema, _KNOWN)
    return record
