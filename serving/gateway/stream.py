"""An engine's event stream, split into what goes out now, what is held back, and the tap's record.

Bytes pass unparsed: an event is looked into only where the name of one that does not simply pass stands among them.
From the terminal event on, everything is held, until the turn is committed; the tap's own event is taken out, and
never reaches a caller. Either is known by a line, wherever that stands in the event.

Invariant: `forwarded + held` is the engine's stream without the tap's event, byte for byte.
"""

import binascii

from ingest.contracts.errors import ContractError
from ingest.contracts.tap import STREAM_EVENT, TapRecord, decode_tap

_BORDER = b"\n\n"


class EventStream:
    """One answer's stream; `terminal` are the ways in which the line begins that its dialect's last event has."""

    def __init__(self, terminal: tuple[bytes, ...]) -> None:
        self._terminal = _spellings(*terminal)
        self._names = (*(line.partition(b": ")[2] for line in terminal), STREAM_EVENT.encode())
        self._rest: list[bytes] = []
        """The parts of an event whose end has not come: joined once, for records have tens of megabytes."""
        self._forwarded: list[bytes] = []
        self._held: list[bytes] = []
        self._tap: bytes | None = None
        self.ended = False
        """Whether the terminal event was seen."""

    def feed(self, chunk: bytes) -> bytes:
        """Takes bytes of the engine; gives those that may go to the caller now: whole events, maybe none."""
        if self._rest:
            seam = self._rest[-1][-1:] + chunk[:1]
            self._rest.append(chunk)
            if seam != _BORDER and _BORDER not in chunk:
                return b""
            chunk = b"".join(self._rest)
            self._rest = []
        cut = chunk.rfind(_BORDER) + len(_BORDER)
        if cut < len(_BORDER):
            self._rest = [chunk]
            return b""
        if cut < len(chunk):
            self._rest = [chunk[cut:]]
        plain = 0 if self.ended else self._plain(chunk[:cut])
        passed = chunk[:plain]
        if plain < cut:
            passed += self._sort(chunk[plain:cut])
        if passed:
            self._forwarded.append(passed)
        return passed

    def _plain(self, events: bytes) -> int:
        """How many bytes come before the first event that may not simply be passed on: its name is in it."""
        first = len(events)
        for name in self._names:
            found = events.find(name)
            if 0 <= found < first:
                first = found
        if first == len(events):
            return first
        border = events.rfind(_BORDER, 0, first)
        return border + len(_BORDER) if border >= 0 else 0

    def _sort(self, events: bytes) -> bytes:
        """Of whole events, what is passed on."""
        out: list[bytes] = []
        *whole, blank = events.split(_BORDER)
        for event in whole:
            lines = event.split(b"\n")
            if any(line.startswith(_TAP) for line in lines):
                self._tap = b"".join([line[len(b"data:") :] for line in lines if line.startswith(b"data:")])
                continue
            self.ended = self.ended or any(line.startswith(self._terminal) for line in lines)
            (self._held if self.ended else out).append(event + _BORDER)
        (self._held if self.ended else out).append(blank)
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
        return decode_record(self._tap, encoded=True)


def _spellings(*lines: bytes) -> tuple[bytes, ...]:
    """Lines of events with and without the space that may follow the colon."""
    return (*lines, *(line.replace(b": ", b":", 1) for line in lines))


_TAP = _spellings(b"event: " + STREAM_EVENT.encode())


def decode_record(data: bytes | None, *, encoded: bool = False) -> TapRecord | None:
    """The record in `data` (base64 where `encoded`); None where there is none, it is damaged, or a newer version's."""
    if not data:
        return None
    try:
        return decode_tap(binascii.a2b_base64(data) if encoded else data)
    except (ContractError, binascii.Error):
        return None
