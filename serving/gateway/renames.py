"""The answer's own id and model name, as its caller knows them, in the bytes of an engine. What the model wrote, and
what the caller sent, stays as it is.

Invariant: bytes in which the engine's names do not stand are not looked into; in all others, every other value stays
byte for byte.
"""

from collections.abc import Mapping

import msgspec

_INSIDE = ("response", "message")
"""Fields in which an event carries the answer; other events, and a JSON body, are it themselves."""
_Fields = dict[str, msgspec.Raw]
_decode = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.encode


class Renames:
    """Called with an engine's bytes, gives those for the caller.

    `names` has, for each field of the answer, the engine's value and the caller's.
    """

    def __init__(self, names: Mapping[str, tuple[str, str]]) -> None:
        self._names = {field: (_encode(engines), _encode(callers)) for field, (engines, callers) in names.items()}
        self._sought = [engines for engines, _ in self._names.values()]

    def __call__(self, data: bytes) -> bytes:
        """Whole events of a stream, or a whole JSON body. What cannot be read passes as it is."""
        if not self._concern(data):
            return data
        if data.startswith(b"{"):
            return self._renamed(data)
        return b"\n".join([self._line(line) if self._concern(line) else line for line in data.split(b"\n")])

    def _concern(self, data: bytes) -> bool:
        """Whether a name of the engine stands in there. Inside a string its quotes would be escaped."""
        for name in self._sought:  # noqa: SIM110 each chunk comes by here, and a generator takes three times as long
            if name in data:
                return True
        return False

    def _line(self, line: bytes) -> bytes:
        name, brace, rest = line.partition(b"{")
        return name + self._renamed(brace + rest) if name.rstrip() == b"data:" else line

    def _renamed(self, answer: bytes) -> bytes:
        changed = answer
        for field, (engines, callers) in self._names.items():
            name = b'"' + field.encode() + b'":'
            before, found, after = changed.partition(name + engines)
            if not found or before.count(b"{") != 1 or b"[" in before or b"\\" in before:
                return self._reread(answer)
            changed = before + name + callers + after  # it stands before all that is nested, as in a chunk of chat
        return changed

    def _reread(self, data: bytes) -> bytes:
        try:
            fields = _decode(data)
            self._rename(fields)
            for name in _INSIDE:
                if name in fields and self._concern(inside := bytes(fields[name])):
                    answer = _decode(inside)
                    self._rename(answer)
                    fields[name] = msgspec.Raw(_encode(answer))
            return _encode(fields)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return data

    def _rename(self, answer: _Fields) -> None:
        for field, (engines, callers) in self._names.items():
            if field in answer and bytes(answer[field]) == engines:
                answer[field] = msgspec.Raw(callers)
