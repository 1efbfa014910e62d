"""What is taken out of texts before they are recorded: fast patterns; heavier tools belong behind the log.

A policy names well-known patterns, regular expressions of its own, and a function. `Redactor` applies all of them to
one text, or to every string in a JSON text. What was found is replaced by `[REDACTED:name]`.

A string may be JSON itself (a tool call's arguments, its result): there a line break is a backslash and an `n`, which
hides where a word begins. So a string that parses as JSON is redacted as JSON, and every string is also searched with
its escapes read, for a cut answer's arguments do not parse. Adjacent text parts of one message are also searched
joined, as the engine reads them.

Expressions are RE2's: time is linear in the text whatever the expression, so that neither an operator's slip nor a
user's text can hold a gateway up (decision 0010). A well-known pattern may have a check in plain Python (Luhn's digit,
IBAN's remainder), which looks at one match, of bounded length.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import re2

from ingest.contracts.errors import ContractError
from ingest.contracts.fleet import Redaction
from ingest.contracts.functions import load_function

MOST_MISSES = 20_000
"""Of one record: a tenth of a second or two. Above it the record cannot be redacted, and is kept without its text."""
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_DIGITS = frozenset(b"0123456789")
_ESCAPED = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\f": "\f", r"\b": "\b", r"\"": '"', r"\/": "/"}
_CODE_POINT = re.compile(r"\\u([0-9a-fA-F]{4})")
_ONE_BACKSLASH = "\ufdd0"
"""Stands for an escaped backslash while the other escapes are read: no character at all, by Unicode's word."""
_PARTS = "[REDACTED:parts]"
_IBAN = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD FK", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip
"""How many letters and digits each country's IBAN has."""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class RedactionError(Exception):
    """A redaction that cannot be applied: which part of it, and why."""


def _compiled(expression: str) -> Any:
    return re2.compile(expression.encode(), _OPTIONS)


class _Budget:
    """How many more near misses may be looked at: what bounds the checks in Python, for RE2 itself is linear.

    `done`: the record's strings so far, and what became of them.
    """

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        self._left = MOST_MISSES

    def spend(self) -> None:
        """One near miss. Raises `RedactionError`."""
        self._left -= 1
        if self._left < 0:
            raise RedactionError(f"redaction: more than {MOST_MISSES} near misses in one record")


def _card(text: bytes, start: int, end: int) -> int:
    """Of groups of digits: 13 to 19, not inside a longer number, with Luhn's check digit."""
    if start and text[start - 1 : start].isdigit():
        return 0
    digits, longest = [], 0
    for place in range(start, end):
        if text[place] in _DIGITS:
            digits.append(text[place] - 48)
            if 13 <= len(digits) <= 19 and not text[place + 1 : place + 2].isdigit() and _luhn(digits):
                longest = place + 1
    return longest


def _luhn(digits: list[int]) -> bool:
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _iban(text: bytes, start: int, end: int) -> int:
    """As many letters and digits as the country's numbers have, with a remainder of 1."""
    length = _IBAN[text[start : start + 2].upper().decode()]
    compact = b""
    for place in range(start, end):
        if text[place] != 32:
            compact += text[place : place + 1].upper()
            if len(compact) == length:
                if text[place + 1 : place + 2].isalnum():
                    return 0
                number = "".join(str(int(chr(letter), 36)) for letter in compact[4:] + compact[:4])
                return place + 1 if int(number) % 97 == 1 else 0
    return 0


def _phone(text: bytes, start: int, end: int) -> int:
    return end if 8 <= sum(text[place] in _DIGITS for place in range(start, end)) <= 15 else 0


PATTERNS: dict[str, tuple[str, Callable[[bytes, int, int], int] | None]] = {
    "email": (r"[\pL\pN._%+'\-]+@(?:[\pL\pN\-]+\.)+\pL{2,}", None),
    "credit_card": (
        r"[2-6][0-9]{3}(?:[ \-]?[0-9]{4}){2,3}(?:[ \-]?[0-9]{1,4})?|3[47][0-9]{2}[ \-]?[0-9]{6}[ \-]?[0-9]{5}",
        _card,
    ),
    "iban": (rf"(?i)\b(?:{'|'.join(_IBAN)})[0-9]{{2}}(?: ?[A-Z0-9]){{11,29}}", _iban),
    "phone": (
        r"(?:\+|\b00)[0-9](?:[ ()./\-]{0,2}[0-9]){6,14}\b"
        r"|\(?\b[0-9]{3}\)?[ .\-][0-9]{3}[ .\-][0-9]{4}\b"
        r"|\b0[0-9]{2,4}[ /\-][0-9]{2,4}(?:[ \-]?[0-9]{2,4}){1,3}\b",
        _phone,
    ),
    "secret": (
        r"\b(?:sk|el|rk|pk)[-_][A-Za-z0-9_\-]{20,}"  # OpenAI, Anthropic, everloop, Stripe
        r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
        r"|\bAIza[0-9A-Za-z_\-]{35}"  # Google
        r"|\bgh[oprsu]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{22,}|\bglpat-[A-Za-z0-9_\-]{20,}"
        r"|\bxox[a-z]-[A-Za-z0-9\-]{10,}|\bhf_[A-Za-z0-9]{30,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_\-]{50,}"
        r"|\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"  # JSON web tokens
        r"|(?i:\bbearer) +[A-Za-z0-9._~+/=\-]{20,}"
        r"|://[^/\s:@]+:[^/\s@]+@"  # a password in a URL
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        None,
    ),
}
"""Well-known patterns: an expression, and a check that says where its match really ends, or 0 where it is none.

Of telephone numbers: those in international form, in North America's, and with a leading 0 and a separator."""


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
        self._function = _function(redaction.function) if redaction.function and load else None

    def text(self, text: str) -> str:
        """`text` without what was found in it. Raises `RedactionError`, or whatever the policy's function raises."""
        return self._string(text, _Budget())

    def json(self, text: str) -> str:
        """The JSON in `text` with every string in it redacted, keys too; the same object where nothing was found.

        A number is looked at as it is written, and becomes a string where something was found in it. Raises as `text`.
        """
        if not text:
            return text
        before = msgspec.json.decode(text)
        after = self._value(before, _Budget())
        return text if after == before else msgspec.json.encode(after).decode()

    def _value(self, value: object, budget: _Budget, name: str = "") -> object:
        """`name` is the member of an object that `value` is, if any."""
        if isinstance(value, str):
            return self._string(value, budget)
        if isinstance(value, dict):
            return {self._string(key, budget): self._value(inner, budget, key) for key, inner in value.items()}
        if isinstance(value, list):
            redacted = [self._value(inner, budget) for inner in value]
            for run in _runs(value, name):
                self._run(run, value, redacted, budget)
            return redacted
        if isinstance(value, int | float) and not isinstance(value, bool):
            written = str(value)
            found = self._string(written, budget)
            return value if found == written else found
        return value

    def _string(self, text: str, budget: _Budget) -> str:
        if text in budget.done:
            return budget.done[text]
        redacted = text
        inner = _inner(text)
        if inner is not None:
            after = self._value(inner, budget)
            if after != inner:
                redacted = msgspec.json.encode(after).decode()
        redacted = read = self._text(redacted, budget)
        while (unescaped := _unescaped(read)) != read:
            read = self._text(unescaped, budget)
            if read != unescaped:
                redacted = read
        budget.done[text] = redacted
        return redacted

    def _run(self, run: list[int], value: list[Any], redacted: list[Any], budget: _Budget) -> None:
        """Redacts what crosses the borders of adjacent text parts: `value` at `run`; `redacted` is changed in place."""
        texts = [_part(value[place]) for place in run]
        joined, alone = "".join(texts), "".join(self._string(text, budget) for text in texts)
        found = self._string(joined, budget)
        if found in (joined, alone):
            return
        if alone != joined:  # found in both ways, and differently: only what both show is kept
            same = _same(found, alone)
            end = _same(found[same:][::-1], alone[same:][::-1])
            found = f"{found[:same]}{_PARTS}{found[len(found) - end :]}"
        replaced = [found, *("" for _ in run[1:])]
        for place, text in zip(run, replaced, strict=True):
            redacted[place] = text if isinstance(value[place], str) else redacted[place] | {"text": text}

    def _text(self, text: str, budget: _Budget) -> str:
        data = text.encode()
        for placeholder, expression, check in self._steps:
            parts, at = [], 0
            for start, end in _found(expression, check, data, budget):
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
    expression: Any, check: Callable[[bytes, int, int], int] | None, text: bytes, budget: _Budget
) -> Iterator[tuple[int, int]]:
    """Where `expression` matches and `check` agrees; where it does not, the search goes on inside the match."""
    at = 0
    while at <= len(text) and (match := expression.search(text, at)) is not None:
        start, end = match.span()
        if check is not None:
            end = check(text, start, end)
        if end > start:
            yield start, end
            at = end
        else:
            budget.spend()
            at = start + 1


def _placeholder(name: str) -> bytes:
    return f"[REDACTED:{name}]".encode()


def _function(name: str) -> Callable[[Any], object]:
    try:
        return load_function(name)
    except ContractError as error:
        raise RedactionError(f"redaction: {name} {error}: install it where gateways run") from None
