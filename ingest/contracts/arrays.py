"""Token ids and logprobs as packed little-endian bytes: int32 and float32.

Half the size of MessagePack's own integers, and numpy, torch, Arrow and DuckDB read them without a copy.
"""

import sys
from array import array
from collections.abc import Iterable

from ingest.contracts.errors import ContractError

_SWAP = sys.byteorder == "big"


def _pack(code: str, values: Iterable[float]) -> bytes:
    packed = array(code, values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes) -> array:
    values = array(code)
    if len(data) % values.itemsize:
        raise ContractError(f"{len(data)} bytes are not a whole number of {values.itemsize}-byte values")
    values.frombytes(data)
    if _SWAP:
        values.byteswap()
    return values


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as int32, little-endian."""
    return _pack("i", ids)


def unpack_ids(data: bytes) -> array:
    """The ids that `pack_ids` packed, as an `array` of int32."""
    return _unpack("i", data)


def pack_logprobs(values: Iterable[float]) -> bytes:
    """Natural-log probabilities as float32, little-endian."""
    return _pack("f", values)


def unpack_logprobs(data: bytes) -> array:
    """The logprobs that `pack_logprobs` packed, as an `array` of float32."""
    return _unpack("f", data)
