"""Which conversation a turn belongs to, without anybody's co-operation.

A caller may name its session (`x-everloop-session`), and harnesses do in ways of their own. Otherwise the
conversation names itself by a chain of keyed hashes over canonical messages: the hash after message i covers messages
0 … i, the key and the end user. The session's name is the hash after the *first assistant message*, which for a first
turn is the answer itself: two users who open with the same words get answers of their own, and part there.

`prefix_hashes` of a turn are the hashes after each assistant message of its prompt, then after the whole
prompt, then after its answer, if one is known. A turn's parent is the one whose last hash stands among its first ones;
a regenerated turn shares all but the last. Gateways keep nothing; trees are built downstream.

Canonical: role, text, and the names and arguments of tool calls. What harnesses move or reshape between
turns (cache markers, blocks or plain string, call ids, reasoning, space around a text) is left out.
"""

from collections.abc import Sequence

import msgspec

from ingest.contracts.ids import keyed_hash
from serving.gateway.dialects.base import decode_bounded
from serving.gateway.exchange import Exchange

_encode = msgspec.json.Encoder(order="deterministic").encode


NATIVE = (
    b"x-everloop-session",
    b"x-claude-code-session-id",  # shared with its subagents
    b"session-id",  # Codex; its subagents share it, and have threads of their own
    b"session_id",  # Pi
    b"x-litellm-session-id",  # OpenHands
)
"""Headers in which callers name their session, the first that is there."""
MOST_ARGUMENTS = 1 << 20
"""Characters of calls' arguments that are read in one conversation. What follows is compared as it is written: to read
twelve million of them took more than a second, in which nobody else was served."""
_REASONED = "</think>"
"""Ends the reasoning in a text, where no parser of the engine's has set it apart."""


def native_session(exchange: Exchange) -> str | None:
    """The caller's own name for its session, None where no header has one.

    In UTF-8, as feedback and erasures name it, which are JSON and a command; in Latin-1 where it is none.
    """
    name = next((name for header in NATIVE if (name := exchange.header(header))), None)
    try:
        return name and name.encode("latin-1").decode()
    except UnicodeDecodeError:
        return name


def session_hash(secret: bytes, name: str) -> str:
    """The session id of the caller's own name for it; feedback on a session uses the same."""
    return keyed_hash(secret, "session", name)


def canonical(message: dict, *, reads: bool = True) -> bytes:
    """What of a message identifies it; equal for a sampled answer and the same answer sent back.

    Unless it `reads` the arguments of calls, they must have been sent back as they were written.
    """
    role, text, calls = message.get("role"), _text(message.get("content")), message.get("tool_calls")
    if role == "assistant" and isinstance(text, str):
        text = text.rpartition(_REASONED)[2].lstrip()  # Hermes sends back what follows it
    return _encode((role, text, _calls(calls, reads) if calls else []))


def _text(content: object) -> object:
    """Without the space around it: Hermes strips its answers before it sends them back."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) and "text" in part else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            return [{k: v for k, v in p.items() if k != "cache_control"} if isinstance(p, dict) else p for p in parts]
        content = "".join(texts)
    return content.strip() if isinstance(content, str) else content or ""


def _calls(calls: object, reads: bool) -> list[tuple[object, object]]:
    named: list[tuple[object, object]] = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            named.append((function.get("name"), _arguments(arguments) if reads else arguments))
    return named


def _arguments(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return decode_bounded(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return arguments


class Conversation:
    """The chain over one request's messages, open for the answer."""

    def __init__(self, secret: bytes, owner: str, messages: Sequence[dict]) -> None:
        """`owner` names the key and the end user: equal words of others are other conversations."""
        self._secret = secret
        self._room = MOST_ARGUMENTS
        self._after_assistant: list[str] = []
        head = keyed_hash(secret, "prefix", owner)
        self.opening = head
        """The hash after the first message of a user: stable over the conversation, for routing."""
        opened = False
        for message in messages:
            head = self._link(head, message)
            if not opened:
                self.opening = head
                opened = message.get("role") == "user"
            if message.get("role") == "assistant":
                self._after_assistant.append(head)
        self._head = head

    def _link(self, head: str, message: dict) -> str:
        if calls := message.get("tool_calls"):
            written = (arguments for _, arguments in _calls(calls, reads=False) if isinstance(arguments, str))
            self._room -= sum(map(len, written))
        return keyed_hash(self._secret, "prefix", head.encode() + canonical(message, reads=self._room >= 0))

    def close(self, answer: dict | None) -> tuple[str, tuple[str, ...]]:
        """Session id and prefix hashes of the turn that got `answer` (None: no answer is known)."""
        tail = (self._head,) if answer is None else (self._head, self._link(self._head, answer))
        session = self._after_assistant[0] if self._after_assistant else tail[-1]
        return session, (*self._after_assistant, *tail)
