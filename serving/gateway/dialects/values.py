"""How many values a body may have in its objects and lists: each costs steps on the one event loop.

Invariant: what costs seconds to read is refused unread; the exact count is taken of what was read.
"""

from serving.gateway.errors import TooLarge

MOST_VALUES = 100_000
"""In one body, token ids of a prompt aside. A conversation of some thousand messages, with its tools, has half as
many."""

_BEGINNINGS = (b",", b"{", b"[")
"""At least one of them stands before each value: where there are few, nothing needs to be counted. To look for them
takes 90 µs in 90 kB, and is not needed in a body of fewer bytes than values."""


def refuse_unread(raw: bytes) -> None:
    """Raises `TooLarge` where JSON surely has more than `MOST_VALUES`, by its strings, fields, lists and objects alone.

    Numbers cost little to read; to read millions of the others takes seconds.
    """
    if len(raw) <= MOST_VALUES:
        return
    if max(raw.count(b":"), raw.count(b"{") + raw.count(b"["), raw.count(b'"') // 4) <= MOST_VALUES:
        return
    most = 4 * MOST_VALUES + 1
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', most)
    outside = b"".join(parts[::2])
    # Of strings there are at most two for each value, its name and itself; of lists and objects all but one are values.
    if len(parts) > most or max(outside.count(b":"), outside.count(b"{") + outside.count(b"[") - 1) > MOST_VALUES:
        raise _too_many()


def check_values(raw: bytes, body: dict) -> None:
    """Raises `TooLarge` for a `body`, read from `raw`, of more than `MOST_VALUES`."""
    if len(raw) <= MOST_VALUES or sum(map(raw.count, _BEGINNINGS)) <= MOST_VALUES:
        return
    seen = len(body)
    pending = [value for name, value in body.items() if name != "prompt"]
    while pending and seen <= MOST_VALUES:
        value = pending.pop()
        if isinstance(value, dict | list):
            seen += len(value)
            pending.extend(value.values() if isinstance(value, dict) else value)
    if seen > MOST_VALUES:
        raise _too_many()


def _too_many() -> TooLarge:
    return TooLarge(
        f"The body has more than {MOST_VALUES:,} values (messages, parts, tools, and each field and list item in "
        "them): send fewer."
    )
