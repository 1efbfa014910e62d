"""What the four wire formats say of tools and of what follows an answer: pure functions of a turn's recorded JSON.

A format has one `Format`, looked up by `Turn.dialect`. Texts are the caller's and the model's: whatever is not of the
expected form is left out, and nothing here raises.

A request's **tail** is what came after its last answer: results of the tools that the answer called, and the user's
next words. A user message that is one tagged block (`<system-reminder>…</system-reminder>`) is the harness's, not the
user's.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

_TAGGED = re.compile(r"<([A-Za-z_-]{1,64})>")


class Call(NamedTuple):
    """A tool that an answer calls. `arguments` is JSON text or an object; None for a tool that takes free text."""

    name: object
    arguments: object


class Result(NamedTuple):
    """What a tool gave back. `failed`: whether the format itself says so; None where it has no word for it."""

    text: str
    failed: bool | None


class Tail(NamedTuple):
    """What came after the last answer. `said`: the user's last words, None where the user said nothing."""

    results: tuple[Result, ...]
    said: str | None


class _Request(msgspec.Struct):
    """The parts of a request that are looked at, each left as it is until it is needed."""

    messages: msgspec.Raw = msgspec.Raw(b"[]")
    input: msgspec.Raw = msgspec.Raw(b"[]")
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    functions: msgspec.Raw = msgspec.Raw(b"[]")
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_request = msgspec.json.Decoder(_Request)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_named = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder()


class Format(ABC):
    """How one wire format is read. Instances are stateless."""

    def calls(self, answer: str) -> list[Call]:
        """The tools that the answer calls, in order; those that a service runs itself are not among them."""
        message = as_json(answer)
        return list(self._calls(message)) if isinstance(message, dict) else []

    def text(self, answer: str) -> str | None:
        """What the answer says to its reader; None where no answer is known."""
        message = as_json(answer)
        return self._text(message) if isinstance(message, dict) else None

    def offered(self, request: str) -> dict[str, dict | None]:
        """The tools that the request offers, by name; with the schema of their arguments where they have one."""
        parts = _parts(request)
        return dict(self._offered(parts)) if parts is not None else {}

    def tail(self, request: str) -> Tail:
        """What came after the request's last answer."""
        parts = _parts(request)
        results: list[Result] = []
        said = None
        for item in _backwards(self._conversation(parts)) if parts is not None else ():
            if self._is_answer(item):
                break
            results += self._results(item)
            if said is None and item.get("role") == "user":
                said = _words(item.get("content"))
        return Tail(tuple(reversed(results)), said)

    @abstractmethod
    def _calls(self, message: dict) -> Iterator[Call]: ...

    @abstractmethod
    def _text(self, message: dict) -> str: ...

    @abstractmethod
    def _offered(self, parts: _Request) -> Iterator[tuple[str, dict | None]]: ...

    @abstractmethod
    def _conversation(self, parts: _Request) -> msgspec.Raw: ...

    @abstractmethod
    def _is_answer(self, item: dict) -> bool: ...

    @abstractmethod
    def _results(self, item: dict) -> list[Result]: ...


class Chat(Format):
    """`chat`, and `completions`, which has neither tools nor answers in its requests."""

    def _calls(self, message: dict) -> Iterator[Call]:
        for call in _dicts(message.get("tool_calls")):
            if isinstance(function := call.get("function"), dict):
                yield Call(function.get("name"), function.get("arguments"))
            elif isinstance(custom := call.get("custom"), dict):
                yield Call(custom.get("name"), None)

    def _text(self, message: dict) -> str:
        return _joined(message.get("content"))

    def _offered(self, parts: _Request) -> Iterator[tuple[str, dict | None]]:
        for tool in _dicts(as_json(parts.tools)):
            yield from _tool(tool.get("function") or tool.get("custom"), "parameters")
        for function in _dicts(as_json(parts.functions)):
            yield from _tool(function, "parameters")

    def _conversation(self, parts: _Request) -> msgspec.Raw:
        return parts.messages

    def _is_answer(self, item: dict) -> bool:
        return item.get("role") == "assistant"

    def _results(self, item: dict) -> list[Result]:
        return [Result(_joined(item.get("content")), None)] if item.get("role") in ("tool", "function") else []


class Messages(Format):
    """`messages`. Tools may be added in mid-conversation, by blocks of a system message."""

    def _calls(self, message: dict) -> Iterator[Call]:
        for block in _dicts(message.get("content")):
            if block.get("type") == "tool_use":
                yield Call(block.get("name"), block.get("input"))

    def _text(self, message: dict) -> str:
        return _joined(message.get("content"))

    def _offered(self, parts: _Request) -> Iterator[tuple[str, dict | None]]:
        for tool in _dicts(as_json(parts.tools)):
            yield from _tool(tool, "input_schema")
        if b"tool_addition" in bytes(parts.messages):
            for message in _dicts(as_json(parts.messages)):
                for block in _dicts(message.get("content")):
                    added = block.get("tool") if block.get("type") == "tool_addition" else None
                    yield from _tool(added.get("definition") if isinstance(added, dict) else None, "input_schema")

    def _conversation(self, parts: _Request) -> msgspec.Raw:
        return parts.messages

    def _is_answer(self, item: dict) -> bool:
        return item.get("role") == "assistant"

    def _results(self, item: dict) -> list[Result]:
        return [
            Result(_joined(block.get("content")), block.get("is_error") is True)
            for block in reversed(_dicts(item.get("content")))
            if block.get("type") == "tool_result"
        ]


class Responses(Format):
    """`responses`. Tools may come in namespaces, and as an item of the input."""

    def _calls(self, message: dict) -> Iterator[Call]:
        for item in _dicts(message.get("output")):
            if item.get("type") == "function_call":
                yield Call(item.get("name"), item.get("arguments"))
            elif item.get("type") == "custom_tool_call":
                yield Call(item.get("name"), None)

    def _text(self, message: dict) -> str:
        return "".join(_joined(item.get("content")) for item in _dicts(message.get("output")) if _is_message(item))

    def _offered(self, parts: _Request) -> Iterator[tuple[str, dict | None]]:
        yield from _flat(_dicts(as_json(parts.tools)))
        if b"additional_tools" in bytes(parts.input):
            for item in _dicts(as_json(parts.input)):
                if item.get("type") == "additional_tools":
                    yield from _flat(_dicts(item.get("tools")))

    def _conversation(self, parts: _Request) -> msgspec.Raw:
        return parts.input

    def _is_answer(self, item: dict) -> bool:
        answers = ("function_call", "custom_tool_call", "reasoning")
        return item.get("type") in answers or (_is_message(item) and item.get("role") == "assistant")

    def _results(self, item: dict) -> list[Result]:
        outputs = ("function_call_output", "custom_tool_call_output")
        return [Result(_joined(item.get("output")), None)] if item.get("type") in outputs else []


FORMATS: dict[str, Format] = {
    "chat": Chat(),
    "completions": Chat(),
    "messages": Messages(),
    "responses": Responses(),
}
"""Every format by the name that `Turn.dialect` has for it."""


def metadata(request: str) -> dict[str, str]:
    """The request's metadata, in any format; a value that is no string is its JSON, one that is null is left out."""
    if '"metadata"' not in request:  # most have none, and need no parsing; a request on the log is compact JSON
        return {}
    parts = _parts(request)
    try:
        values = _named.decode(parts.metadata) if parts is not None else {}
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}
    texts = {name: as_json(raw) for name, raw in values.items()}
    return {
        name: text if isinstance(text, str) else bytes(values[name]).decode()
        for name, text in texts.items()
        if text is not None
    }


def as_json(text: str | msgspec.Raw) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return _any.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _parts(request: str) -> _Request | None:
    try:
        return _request.decode(request)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _backwards(conversation: msgspec.Raw) -> Iterator[dict]:
    """The items of a conversation, the last first; each is decoded when it is asked for, for histories are long."""
    try:
        items = _raws.decode(conversation)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return
    yield from (item for raw in reversed(items) if isinstance(item := as_json(raw), dict))


def _dicts(value: object) -> list[dict]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(content: object) -> list[str]:
    """The texts of a content, which is a string or a list of parts."""
    if isinstance(content, str):
        return [content]
    return [text for part in _dicts(content) if isinstance(text := part.get("text"), str)]


def _joined(content: object) -> str:
    return "".join(_texts(content))


def _words(content: object) -> str | None:
    """What a user says in a content, without what a harness added; None where that is nothing."""
    said = [text for text in _texts(content) if text.strip() and not _is_tagged(text.strip())]
    return "\n".join(said) or None


def _is_tagged(text: str) -> bool:
    tag = _TAGGED.match(text)
    return tag is not None and text.endswith(f"</{tag[1]}>")


def _tool(tool: object, schema_field: str) -> Iterator[tuple[str, dict | None]]:
    if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
        schema = tool.get(schema_field)
        yield name, schema if isinstance(schema, dict) else None


def _flat(tools: list[dict]) -> Iterator[tuple[str, dict | None]]:
    """Tools of the Responses format; those of a namespace under each of the names that an engine calls them by."""
    for tool in tools:
        if tool.get("type") == "namespace":
            for name, schema in _flat(_dicts(tool.get("tools"))):
                yield name, schema
                yield f"{tool.get('name')}__{name}", schema
        else:
            yield from _tool(tool, "parameters")


def _is_message(item: dict) -> bool:
    return item.get("type", "message") == "message"
