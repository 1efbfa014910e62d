"""An engine's event stream, split into what goes out now, what is held back, and the tap's record.

Bytes pass unparsed: only event borders are looked for. From the terminal event on, everything is held,
until the turn is committed; the tap's own event is taken out, and never reaches a caller.

Invariant: `forwarded + held` is the engine's stream without the tap's event, byte for byte.
"""

import binascii

import msgspec

from ingest.contracts.tap import STREAM_EVENT, TapRecord, decode_tap

_BORDER = b"\n\n"
_TAP = b"event: " + STREAM_EVENT.encode() + b"\n"


class EventStream:
    """One answer's stream; `terminal` are the ways in which its dialect's last event begins."""

    def __init__(self, terminal: tuple[bytes, ...]) -> None:
        self._terminal = terminal
        self._special = (*terminal, _TAP)
        self._special_inside = tuple(_BORDER + begin for begin in self._special)
        self._rest = b""
        self._forwarded: list[bytes] = []
        self._held: list[bytes] = []
        self._tap: bytes | None = None
        self.ended = False
        """Whether the terminal event was seen."""

    def feed(self, chunk: bytes) -> bytes:
        """Takes bytes of the engine; gives those that may go to the caller now: whole events, maybe none."""
        if self._rest:
            chunk = self._rest + chunk
            self._rest = b""
        cut = chunk.rfind(_BORDER) + len(_BORDER)
        if cut < len(_BORDER):
            self._rest = chunk
            return b""
        self._rest = chunk[cut:]
        plain = 0 if self.ended else self._plain(chunk)
        passed = chunk[: min(plain, cut)] + self._sort(chunk[plain:cut])
        if passed:
            self._forwarded.append(passed)
        return passed

    def _plain(self, events: bytes) -> int:
        """How many bytes come before the first event that is not simply passed on."""
        if events.startswith(self._special):
            return 0
        places = [place for begin in self._special_inside if (place := events.find(begin)) >= 0]
        return min(places) + len(_BORDER) if places else len(events)

    def _sort(self, events: bytes) -> bytes:
        """Of whole events, what is passed on."""
        out: list[bytes] = []
        for event in events.split(_BORDER)[:-1]:
            if event.startswith(_TAP):
                self._tap = event.partition(b"\ndata: ")[2]
                continue
            self.ended = self.ended or event.startswith(self._terminal)
            (self._held if self.ended else out).append(event + _BORDER)
        return b"".join(out)

    @property
    def forwarded(self) -> bytes:
        """Everything that `feed` gave out."""
        return b"".join(self._forwarded)

    @property
    def held(self) -> bytes:
        """The terminal event, and what the engine sent after it."""
        return b"".join(self._held)

    @property
    def record(self) -> TapRecord | None:
        """The tap's record, None where none arrived whole."""
        return decode_record(self._tap and self._tap.replace(b"\n", b""), encoded=True)


def decode_record(data: bytes | None, *, encoded: bool = False) -> TapRecord | None:
    """The record in `data` (base64 where `encoded`); None where there is none, or it is damaged."""
    if not data:
        return None
    try:
        return decode_tap(binascii.a2b_base64(data) if encoded else data)
    except (msgspec.MsgspecError, binascii.Error):
        return None
