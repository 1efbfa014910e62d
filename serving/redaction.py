"""What is taken out of texts before they are recorded: fast patterns; heavier tools belong behind the log.

A policy names well-known patterns, regular expressions of its own, and a function. `Redactor` applies all of them to
one text, or to every string in a JSON text. What was found is replaced by `[REDACTED:name]`.

A string may be JSON itself (a tool call's arguments, its result): there a line break is a backslash and an `n`, which
hides where a word begins. So a string that parses as JSON is redacted as JSON, and every string is also searched with
its escapes read, for a cut answer's arguments do not parse. Adjacent text parts of one message are also searched
joined, as the engine reads them.

Expressions are RE2's: time is linear in the text whatever the expression, so that neither an operator's slip nor a
user's text can hold a gateway up (decision 0010).

Calling RE2 costs microseconds, searching costs nanoseconds a byte. So the texts of a record are joined and searched
once, and only those in which that found something are looked at one by one. All of it is counted: a record that would
take too much is refused, by the thread that works on it.
"""

import math
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import msgspec
import re2

from ingest.contracts.errors import ContractError
from ingest.contracts.fleet import Redaction
from ingest.contracts.functions import load_function
from serving.patterns import PATTERNS

MOST_VALUES = 250_000
"""Members and elements of one record; four escaped characters count as one. Half a second, as each of the following is
at most. Above it a record cannot be redacted, and is kept without its text."""
MOST_CHARACTERS = 32 << 20
"""To search in one record; those of JSON in JSON, and those of adjacent parts, count again."""
MOST_TEXTS = 50_000
"""Texts of one record that are looked at one by one: with a find, or all where a function or an anchor needs it."""
MOST_MATCHES = 20_000
"""Matches in one record, those included that a check in Python then refuses."""
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_ESCAPED = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\f": "\f", r"\b": "\b", r"\"": '"', r"\/": "/"}
_CODE_POINT = re.compile(r"\\u([0-9a-fA-F]{4})")
_ONE_BACKSLASH = "\ufdd0"
"""Stands for an escaped backslash while the other escapes are read: no character at all, by Unicode's word."""
_BETWEEN = b"\0\n"
"""Between texts that are searched as one. Neither white space nor its opposite crosses it; the rest alarms falsely."""
_PARTS = "[REDACTED:parts]"
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class RedactionError(Exception):
    """A redaction that cannot be applied: which part of it, and why."""


def _compiled(expression: str) -> Any:
    return re2.compile(expression.encode(), _OPTIONS)


class _Work:
    """What one record may still cost, and what is known of its texts. Every method raises `RedactionError`.

    `clean` are texts in which nothing is found; `done` says what became of strings. `deadline` is of `time.monotonic`.
    """

    def __init__(self, deadline: float) -> None:
        self.clean: set[str] = set()
        self.done: dict[str, str] = {}
        self._deadline = deadline
        self._matches = MOST_MATCHES
        self._values = MOST_VALUES
        self._characters = MOST_CHARACTERS
        self._texts = MOST_TEXTS

    def on_time(self) -> None:
        """Called between any two steps that take long."""
        if time.monotonic() > self._deadline:
            raise RedactionError("redaction: it took too long")

    def match(self) -> None:
        """One match, before its check."""
        self.on_time()
        self._matches -= 1
        if self._matches < 0:
            raise RedactionError(f"redaction: more than {MOST_MATCHES} matches in one record")

    def values(self, count: int) -> None:
        """So many values are about to be visited."""
        self._values -= count
        if self._values < 0:
            raise RedactionError(f"redaction: the record is too large: more than {MOST_VALUES} values")

    def search(self, characters: int) -> None:
        """So many characters are about to be searched."""
        self.on_time()
        self._characters -= characters
        if self._characters < 0:
            raise RedactionError(
                f"redaction: the record is too large: more than {MOST_CHARACTERS} characters to search"
            )

    def text(self, text: str) -> None:
        """One text is about to be looked at alone."""
        self.search(len(text))
        self._texts -= 1
        if self._texts < 0:
            raise RedactionError(f"redaction: more than {MOST_TEXTS} texts in one record may hold something")


class Redactor:
    """One policy's redaction, ready to be applied. Raises `RedactionError`.

    `load`: whether the function is imported; without it only expressions and names are checked.
    """

    def __init__(self, redaction: Redaction, *, load: bool = True) -> None:
        self._steps: list[tuple[bytes, Any, Callable[[bytes, int, int], int] | None]] = []
        for name in redaction.patterns:
            if name not in PATTERNS:
                raise RedactionError(f'redaction: there is no pattern "{name}", only {", ".join(PATTERNS)}')
            expression, check = PATTERNS[name]
            self._steps.append((_placeholder(name), _compiled(expression), check))
        for name, expression in redaction.expressions.items():
            if not _NAME.fullmatch(name):
                raise RedactionError(f'redaction: "{name}" must have 1 to 40 of: lower-case letters, digits, "_"')
            try:
                compiled = _compiled(expression)
                if compiled.search(b""):
                    raise RedactionError(
                        f"redaction: the expression {name} matches nothing at all: it would everywhere"
                    )
                self._steps.append((_placeholder(name), compiled, None))
            except re2.error as error:
                said = error.args[0].decode() if isinstance(error.args[0], bytes) else error
                raise RedactionError(f"redaction: the expression {name} is none of RE2's: {said}") from None
        self._alone = redaction.function is not None or any(map(_anchored, redaction.expressions.values()))
        self._function = _function(redaction.function) if redaction.function and load else None

    def text(self, text: str, deadline: float = math.inf) -> str:
        """`text` without what was found in it.

        Raises `RedactionError`, also where it would take too much or `time.monotonic` passes `deadline`, and whatever
        the policy's function raises.
        """
        work = _Work(deadline)
        return self._string(text, work) if self._finds(text, work) else text

    def json(self, text: str, deadline: float = math.inf) -> str:
        """The JSON in `text` with every string in it redacted, keys too; the same object where nothing was found.

        A number is looked at as it is written, and becomes a string where something was found in it. Raises as `text`.
        """
        if not text:
            return text
        work = _Work(deadline)
        before = msgspec.json.decode(text)
        if not self._finds(before, work):
            return text
        after = self._value(before, work)
        return text if after == before else msgspec.json.encode(after).decode()

    def _finds(self, value: object, work: _Work) -> bool:
        """Whether anything in `value` must be looked at alone; `work.clean` gets the texts that need not be."""
        texts = list(_texts(value, work))
        if self._alone:
            return True
        encoded = [text.encode() for text in texts]
        ends = list(accumulate(len(text) + len(_BETWEEN) for text in encoded))
        joined = _BETWEEN.join((*encoded, b""))
        unclean: set[int] = set()
        for _, expression, _ in self._steps:
            at = 0
            while at < len(joined) and (match := expression.search(joined, at)) is not None:
                work.on_time()
                start, end = match.span()
                last = min(bisect_left(ends, max(end, start + 1)), len(ends) - 1)
                unclean.update(range(bisect_right(ends, start), last + 1))
                at = ends[last]
        work.clean.update(text for place, text in enumerate(texts) if place not in unclean)
        return bool(unclean)

    def _value(self, value: object, work: _Work, name: str = "") -> object:
        """`name` is the member of an object that `value` is, if any."""
        work.on_time()
        if isinstance(value, str):
            return self._string(value, work)
        if isinstance(value, dict):
            return {self._string(key, work): self._value(inner, work, key) for key, inner in value.items()}
        if isinstance(value, list):
            redacted = [self._value(inner, work) for inner in value]
            for run in _runs(value, name):
                self._run(run, value, redacted, work)
            return redacted
        if isinstance(value, int | float) and not isinstance(value, bool):
            written = str(value)
            found = self._string(written, work)
            return value if found == written else found
        return value

    def _string(self, text: str, work: _Work) -> str:
        if text in work.done:
            return work.done[text]
        redacted = text
        inner = _inner(text)
        if inner is not None:
            after = self._value(inner, work)
            if after != inner:
                redacted = msgspec.json.encode(after).decode()
        redacted = read = self._text(redacted, work)
        while (unescaped := _unescaped(read)) != read:
            read = self._text(unescaped, work)
            if read != unescaped:
                redacted = read
        work.done[text] = redacted
        return redacted

    def _run(self, run: list[int], value: list[Any], redacted: list[Any], work: _Work) -> None:
        """Redacts what crosses the borders of adjacent text parts: `value` at `run`; `redacted` is changed in place."""
        texts = [_part(value[place]) for place in run]
        joined, alone = "".join(texts), "".join(self._string(text, work) for text in texts)
        found = self._string(joined, work)
        if found in (joined, alone):
            return
        if alone != joined:  # found in both ways, and differently: only what both show is kept
            same = _same(found, alone)
            end = _same(found[same:][::-1], alone[same:][::-1])
            found = f"{found[:same]}{_PARTS}{found[len(found) - end :]}"
        replaced = [found, *("" for _ in run[1:])]
        for place, text in zip(run, replaced, strict=True):
            redacted[place] = text if isinstance(value[place], str) else redacted[place] | {"text": text}

    def _text(self, text: str, work: _Work) -> str:
        if text in work.clean:
            return text
        work.text(text)
        data = text.encode()
        for placeholder, expression, check in self._steps:
            parts, at = [], 0
            for start, end in _found(expression, check, data, work):
                parts += [data[at:start], placeholder]
                at = end
            if parts:
                data = b"".join((*parts, data[at:]))
        redacted: object = data.decode()
        if self._function is not None:
            redacted = self._function(redacted)
        if not isinstance(redacted, str):
            raise RedactionError("redaction: the function gave something that is no text")
        return redacted


def _texts(value: object, work: _Work) -> Iterator[str]:
    """Every text that is searched on behalf of `value`; each at least once."""
    seen: set[str] = set()
    left: list[tuple[object, str]] = [(value, "")]
    while left:
        value, name = left.pop()
        if isinstance(value, str):
            if value in seen:
                continue
            seen.add(value)
            work.values(value.count(r"\u") // 4)
            if (inner := _inner(value)) is not None:
                left.append((inner, ""))
            work.search(len(value))
            yield value
            text = value
            while (unescaped := _unescaped(text)) != text:
                text = unescaped
                work.search(len(text))
                work.values(text.count(r"\u") // 4)
                yield text
        elif isinstance(value, dict):
            work.values(2 * len(value))
            left += ((key, "") for key in value)
            left += ((inner, key) for key, inner in value.items())
        elif isinstance(value, list):
            work.values(len(value))
            left += ((inner, "") for inner in value)
            left += (("".join(_part(value[place]) for place in run), "") for run in _runs(value, name))
        elif isinstance(value, int | float) and not isinstance(value, bool) and (written := str(value)) not in seen:
            seen.add(written)
            work.search(len(written))
            yield written


def _anchored(expression: str) -> bool:
    """Whether it may ask where a text begins or ends, so that it must see each alone."""
    return re.search(r"[\^$]|\\[Az]", expression.replace("[^", "[")) is not None


def _inner(text: str) -> object:
    """The object or array that `text` is as JSON; None where it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _unescaped(text: str) -> str:
    """`text` with JSON's escapes read once, in whatever of it they stand."""
    if "\\" not in text:
        return text
    text = text.replace("\\\\", _ONE_BACKSLASH)
    for escape, character in _ESCAPED.items():
        text = text.replace(escape, character)
    return _CODE_POINT.sub(_character, text).replace(_ONE_BACKSLASH, "\\")


def _character(escape: re.Match[str]) -> str:
    code = int(escape[1], 16)
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)


def _runs(values: list[Any], name: str) -> Iterator[list[int]]:
    """Where two or more text parts stand side by side: objects with a text, in a message's content strings too."""
    run: list[int] = []
    for place, value in enumerate(values):
        if (isinstance(value, dict) and isinstance(value.get("text"), str)) or (
            isinstance(value, str) and name == "content"
        ):
            run.append(place)
            continue
        if len(run) > 1:
            yield run
        run = []
    if len(run) > 1:
        yield run


def _same(one: str, other: str) -> int:
    """How many characters both begin with."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda n: one[: n + 1] != other[: n + 1])


def _part(value: Any) -> str:
    return value if isinstance(value, str) else value["text"]


def _found(
    expression: Any, check: Callable[[bytes, int, int], int] | None, text: bytes, work: _Work
) -> Iterator[tuple[int, int]]:
    """Where `expression` matches and `check` agrees; where it does not, the search goes on inside the match."""
    at = 0
    while at <= len(text) and (match := expression.search(text, at)) is not None:
        work.match()
        start, end = match.span()
        if check is not None:
            end = check(text, start, end)
        if end > start:
            yield start, end
            at = end
        else:
            at = start + 1


def _placeholder(name: str) -> bytes:
    return f"[REDACTED:{name}]".encode()


def _function(name: str) -> Callable[[Any], object]:
    try:
        return load_function(name)
    except ContractError as error:
        raise RedactionError(f"redaction: {name} {error}: install it where gateways run") from None
