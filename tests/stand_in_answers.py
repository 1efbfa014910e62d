"""One answer of the stand-in engine, whatever its wire format: the tokens that a script's step spells, and its calls.

A `Format` answers one request with a script's step, or with words of the engine's own. It reads what a script is chosen
by (what the user said, and when answers came), gives the events of each token, those that end the stream, and
the JSON answer.
"""

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Tool:
    """A scripted call of a tool; for a free-form tool `arguments` is its text."""

    name: str
    arguments: dict | str
    namespace: str | None = None

    @property
    def text(self) -> str:
        """What the model writes."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, separators=(",", ":"))


def pieces(text: str) -> list[str]:
    """The tokens that a script's text has."""
    return [text[at : at + 8] for at in range(0, len(text), 8)]


@dataclass
class Output:
    """One sample so far: the text of each token, and how it finished."""

    index: int
    pieces: list[str] = field(default_factory=list)
    finish: str | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class Format(ABC):
    """One request and its answer: what a script's `step` says, or plain text."""

    name: str
    path: str
    kind: str

    def __init__(self, request_id: str, body: dict, step: dict) -> None:
        self.request_id, self.body = request_id, body
        self.prompt_tokens = step.get("prompt_tokens", 1)
        """What the usage says of the prompt's length."""
        calls = step.get("calls") or ([step] if "tool" in step else [])
        self.tools = [Tool(call["tool"], call["arguments"], call.get("namespace")) for call in calls]
        """The calls that its tokens spell one after another; none where they are plain text."""
        self.script = [piece for tool in self.tools for piece in pieces(tool.text)] or pieces(step.get("text", ""))
        """The text of each token; nothing where the engine says words of its own."""
        self.part = uuid.uuid4().hex[:12]
        """What makes the ids of the answer's parts unique."""

    @property
    def id(self) -> str:
        """The answer's id, as vLLM makes it."""
        return f"{self.kind}-{self.request_id}"

    def call_id(self, place: int) -> str:
        """The id of a tool call."""
        return f"call-{self.part}-{place}"

    def spelled(self, output: Output) -> list[str]:
        """The text of each tool call that was begun so far."""
        texts, rest = [], output.pieces
        for tool in self.tools:
            length = len(pieces(tool.text))
            if rest:
                texts.append("".join(rest[:length]))
            rest = rest[length:]
        return texts

    @staticmethod
    @abstractmethod
    def said(body: dict) -> list[str | None]:
        """What the user said, in order; None for each answer."""

    @staticmethod
    def limit(body: dict) -> int | None:
        """The caller's limit of the output."""
        return body.get("max_completion_tokens") or body.get("max_tokens")

    @abstractmethod
    def events(self, output: Output) -> Iterator[dict]:
        """The events of the token that `output` ends with."""

    @abstractmethod
    def ending(self, outputs: list[Output]) -> bytes:
        """The events that end a stream."""

    @abstractmethod
    def whole(self, outputs: list[Output]) -> dict:
        """The JSON answer."""

    def usage(self, outputs: list[Output]) -> dict:
        """Tokens counted as OpenAI counts them."""
        tokens, prompt = sum(len(output.pieces) for output in outputs), self.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    def encode(self, event: dict) -> bytes:
        """One event of a stream."""
        name = f"event: {event['type']}\n" if "type" in event else ""
        return f"{name}data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def said_by_role(messages: list[dict]) -> list[str | None]:
    """What the messages of the role `user` say; None for each of the assistant's."""
    said: list[str | None] = []
    for message in messages:
        content = message.get("content") if message["role"] == "user" else ()
        said += [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
        said += [None] if message["role"] == "assistant" else []
    return said
