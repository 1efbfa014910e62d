"""What can be had of a damaged segment: every row whose own bytes are whole, whatever became of the tree above it.

SQLite finds a row from the root of a tree, so one damaged page hides all that is below it. Here each page is looked at
by itself: a leaf says which rows begin in it, a row which further pages it goes on in, and its checksum whether it is
as it was written. Pure: bytes in, rows out. The format is SQLite's own (https://www.sqlite.org/fileformat2.html).
"""

import struct
from typing import NamedTuple

from ingest.spool.segment import PAGE_BYTES, checksum

_LEAF = 13
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8, 0, 0, 0)
_WAL_HEADER, _FRAME_HEADER = 32, 24
_SIZES = (4096, PAGE_BYTES)
"""Pages that segments have had."""


class Salvage(NamedTuple):
    """The rows that are whole, by sequence, and the sequences of those that are seen to be damaged."""

    rows: dict[int, bytes]
    damaged: set[int]


def salvage(image: bytes) -> Salvage:
    """All that can be had of a segment's bytes.

    A file without any checksum is from before there were any: its rows count as whole where they can be followed.
    """
    size = _page_bytes(image[16:18])
    checked: dict[int, bytes] = {}
    unchecked: dict[int, bytes] = {}
    damaged: set[int] = set()
    for page in range(1, len(image) // size):  # the first one has the schema
        for sequence, record in _leaf(image, page, size):
            match _columns(record):
                case (crc, payload) if crc == checksum(sequence, payload):
                    checked[sequence] = payload
                case (None, payload):
                    unchecked[sequence] = payload
                case _:
                    damaged.add(sequence)
    rows = checked or unchecked
    return Salvage(rows, damaged - rows.keys())


def overlay(database: bytes, log: bytes) -> bytes:
    """The database with all frames of its write-ahead log laid over it, up to the last that ends a transaction.

    SQLite stops at the first frame whose checksum is wrong. The rows have checksums of their own.
    """
    size, pages = _page_bytes(log[8:12]), bytearray(database)
    for at in _frames(log)[: _committed(log)]:
        number = int.from_bytes(log[at : at + 4], "big")
        if not 0 < number <= (len(log) + len(database)) // size:
            continue
        pages.extend(bytes(max(0, number * size - len(pages))))
        content = at + _FRAME_HEADER
        pages[(number - 1) * size : number * size] = log[content : content + size]
    return bytes(pages)


def cut_off(log: bytes, frames: int) -> bool:
    """Whether the log has a transaction that ended after its first `frames` frames, which are all that SQLite takes."""
    return _committed(log) > frames


def _frames(log: bytes) -> range:
    frame = _FRAME_HEADER + _page_bytes(log[8:12])
    return range(_WAL_HEADER, len(log) - frame + 1, frame)


def _page_bytes(told: bytes) -> int:
    """The size of the pages, as the head of a file tells it; where that cannot be, today's."""
    size = int.from_bytes(told, "big")
    return size if size in _SIZES else PAGE_BYTES


def _committed(log: bytes) -> int:
    """The number of frames up to the last that ends a transaction: it says how large the database is then."""
    ends = (index for index, at in enumerate(_frames(log), 1) if log[at + 4 : at + 8] != b"\0\0\0\0")
    return max(ends, default=0)


def _leaf(image: bytes, page: int, size: int) -> list[tuple[int, bytes | None]]:
    """(sequence, record) of each row that begins in the page; None where its bytes cannot be followed."""
    start = page * size
    if image[start] != _LEAF:
        return []
    rows: list[tuple[int, bytes | None]] = []
    cells = min(int.from_bytes(image[start + 3 : start + 5], "big"), (size - 8) // 2)
    for (offset,) in struct.iter_unpack(">H", image[start + 8 : start + 8 + 2 * cells]):
        if not 8 <= offset < size - 4:
            continue
        length, at = _varint(image, start + offset)
        sequence, at = _varint(image, at)
        rows.append((sequence, _record(image, at, length, size)))
    return rows


def _record(image: bytes, at: int, length: int, size: int) -> bytes | None:
    """A row's bytes: those on the leaf, and those on the chain of pages where there are more."""
    if length > len(image):
        return None
    page_end = (at // size + 1) * size
    most, least = size - 35, (size - 12) * 32 // 255 - 23
    if length <= most:
        return image[at : at + length] if at + length <= page_end else None
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    if at + local + 4 > page_end:
        return None
    parts, left = [image[at : at + local]], length - local
    following = int.from_bytes(image[at + local : at + local + 4], "big")
    while left > 0:
        if not 0 < following <= len(image) // size:
            return None
        start = (following - 1) * size
        parts.append(image[start + 4 : start + 4 + min(left, size - 4)])
        left -= len(parts[-1])
        following = int.from_bytes(image[start : start + 4], "big")
    return b"".join(parts)


def _columns(record: bytes | None) -> tuple[int | None, bytes] | None:
    """(checksum, payload) of a row (NULL, integer, blob), as segments have it; of (NULL, blob) without the checksum."""
    if not record:
        return None
    end, at = _varint(record, 0)
    kinds = []
    while at < min(end, len(record)):
        kind, at = _varint(record, at)
        kinds.append(kind)
    if at != end or len(kinds) not in (2, 3) or kinds[0] != 0 or kinds[-1] < 12 or kinds[-1] % 2:
        return None
    crc: int | None = None
    if len(kinds) == 3:
        if kinds[1] >= len(_INTEGER_BYTES):
            return None
        width = _INTEGER_BYTES[kinds[1]]
        crc = int.from_bytes(record[at : at + width], "big") if width else kinds[1] - 8
        at += width
    payload = record[at:]
    return (crc, payload) if len(payload) == (kinds[-1] - 12) // 2 else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """SQLite's variable-length integer at `at`, and where it ends. Zeros follow the end of the data."""
    value = 0
    for index in range(8):
        byte = data[at + index] if at + index < len(data) else 0
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | (data[at + 8] if at + 8 < len(data) else 0), at + 9
