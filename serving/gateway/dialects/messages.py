"""`/v1/messages`: Anthropic's format, and `/v1/messages/count_tokens`, which samples nothing.

What Anthropic's service runs itself (web search, code execution, files by id, PDFs) no engine does: such tools are left
out, such blocks become a line of text, and the caller is told which. Tools that the client runs stay, whatever their
type.
"""

from collections.abc import Collection

import msgspec

from serving.gateway.dialects.base import (
    Dialect,
    Reply,
    decode_bounded,
    encode_text,
    expect,
    without,
    word,
)
from serving.gateway.dialects.event_data import data_of
from serving.gateway.dialects.media import check_url
from serving.gateway.dialects.messages_repair import SMALLEST_BUDGET, repair_thinking, repair_tools, repaired_content
from serving.gateway.errors import TOO_LONG, BadRequest, GatewayError

_encode = msgspec.json.encode
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_BILLING = "x-anthropic-billing-header"
"""How a line of Claude Code's system prompt begins that changes with each request; vLLM leaves it out, too."""

_LONGEST_PERSON = 4096
"""Characters of a `user_id` that is looked into: what Claude Code sends has some two hundred."""


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    content_block: dict | None = None
    delta: _Delta | None = None


class _Message(msgspec.Struct):
    content: list[dict]
    stop_reason: str | None = None


_events = msgspec.json.Decoder(list[_Event])
_message = msgspec.json.Decoder(_Message)


class Messages(Dialect):
    """Messages. The engine makes the answer's id of chat's prefix: `Progress.renamed` puts the turn's in its place."""

    name = "messages"
    path = "/v1/messages"
    id_prefix = "msg_"
    engine_prefix = "chatcmpl-"
    request_id_header = b"request-id"
    terminal = (b"event: message_stop", b"event: error")
    sent = frozenset(
        {
            *("messages", "system", "max_tokens", "stop_sequences", "stream", "temperature", "top_k", "top_p"),
            *("tools", "tool_choice", "thinking", "output_config", "chat_template_kwargs"),
        }
    )
    accepted = frozenset({"model", "metadata", "service_tier", "cache_control", "user_profile_id"})

    def prompts(self, body: dict) -> int:
        return 1

    def person(self, body: dict) -> tuple[str | None, str | None]:
        """`metadata.user_id`; Claude Code puts its session in there, which names no end user."""
        metadata = expect(body, "metadata", dict, {})
        user = expect(metadata, "user_id", str, None)
        if user is None:
            return expect(body, "user_profile_id", str, None), None
        body["metadata"] = {name: value for name, value in metadata.items() if name != "user_id"}
        return _person(user)

    def heard(self, body: dict, media_domains: Collection[str]) -> list[dict]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("`messages` must be a list of at least one message.", param="messages")
        system = body.get("system")
        heard = []
        if text := _system(_blocks(system, "system")):
            heard.append({"role": "system", "content": text})
        for place, message in enumerate(messages):
            where = f"messages[{place}]"
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise BadRequest("Each message must be an object with a `role`.", param=where)
            blocks = _blocks(message.get("content"), f"{where}.content")
            for block in blocks:
                _check_media(block, media_domains, f"{where}.content")
            _add(heard, _heard(message["role"], blocks))
        return heard

    def said(self, message: dict) -> dict:
        # An answer has no results of tools; if it had, they would come first.
        return _heard("assistant", message["content"])[-1]

    def repair(self, forward: dict, dropped: list[str]) -> None:
        forward["messages"] = [
            {**message, "content": repaired_content(message.get("content"), f"messages[{place}].content", dropped)}
            for place, message in enumerate(forward["messages"])
        ]
        if "system" in forward:
            forward["system"] = repaired_content(forward["system"], "system", dropped)
        repair_tools(forward, dropped)
        repair_thinking(forward, dropped)

    def seal(self, body: dict, turn_id: str) -> None:
        """Thinking must leave room for an answer, also where the limit was clamped to the context."""
        thinking, limit = body.get("thinking"), body.get("max_tokens")
        if not isinstance(thinking, dict) or not isinstance(limit, int):
            return
        budget = thinking.get("budget_tokens")
        if isinstance(budget, int) and budget >= limit:
            fits = limit > SMALLEST_BUDGET
            body["thinking"] = {**thinking, "budget_tokens": limit - 1} if fits else {"type": "adaptive"}

    def leave_out_media(self, body: dict, dropped: list[str]) -> None:
        for place, message in enumerate(body["messages"]):
            message["content"] = without(message["content"], ("image",), f"messages[{place}].content", dropped)

    def replies(self, body: bytes) -> dict[int, Reply]:
        message = _message.decode(body)
        return {0: _reply(message.content, message.stop_reason)}

    def stream_replies(self, events: bytes) -> dict[int, Reply]:
        blocks: dict[int, dict] = {}
        pieces: dict[tuple[int, str], list[str]] = {}
        stop_reason = None
        for event in _events.decode(data_of(events)):
            delta = event.delta
            if event.content_block is not None:
                blocks[event.index] = event.content_block
            elif delta is not None and event.type == "message_delta":
                stop_reason = delta.stop_reason
            elif delta is not None and event.index in blocks:
                for name in ("text", "thinking", "signature", "partial_json"):
                    if piece := getattr(delta, name):
                        pieces.setdefault((event.index, name), []).append(piece)
        for (index, name), said in pieces.items():
            text, block = "".join(said), blocks[index]
            if name == "partial_json":
                block["input"] = _arguments(text)
            else:
                block[name] = word(block.get(name)) + text
        return {0: _reply([blocks[index] for index in sorted(blocks)], stop_reason)} if blocks or stop_reason else {}

    def model(self, name: str) -> dict:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    def model_list(self, names: list[str]) -> dict:
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return {"data": [self.model(name) for name in names], "has_more": False, **ends}

    def error_body(self, error: GatewayError, message: str = "") -> bytes:
        kind = _KINDS.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
        message = message or error.message
        if error.code == TOO_LONG:  # the words on which harnesses shorten a conversation
            message = f"prompt is too long: {message}"
        elif error.param and error.param not in message:
            message = f"{error.param}: {message}"
        return _encode({"type": "error", "error": {"type": kind, "message": message}})

    def error_event(self, error: GatewayError) -> bytes:
        return b"event: error\ndata: " + self.error_body(error, error.in_stream) + b"\n\n"


def _person(user: str) -> tuple[str, str | None]:
    """End user and session in Claude Code's `user_id`: a JSON object, or, before, one name joined of three."""
    if user.startswith("{") and len(user) <= _LONGEST_PERSON:
        try:
            parts = decode_bounded(user)
        except (msgspec.MsgspecError, RecursionError):
            return user, None
        session = parts.pop("session_id", None)
        return encode_text(dict(sorted(parts.items()))), session if isinstance(session, str) else None
    rest, mark, session = user.rpartition("_session_")
    return (rest, session) if mark else (user, None)


def _blocks(content: object, where: str) -> list[dict]:
    """A content as blocks; raises `BadRequest` where it is neither text nor a list of them."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadRequest("A content must be a string or a list of blocks.", param=where)
    return content


def _check_media(block: dict, domains: Collection[str], where: str) -> None:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "url":
        check_url(source.get("url"), domains, where)
    inner = block.get("content")
    for part in inner if isinstance(inner, list) else ():
        if isinstance(part, dict):
            _check_media(part, domains, where)


# The conversation


def _system(blocks: list[dict]) -> str:
    texts = [block.get("text") for block in blocks]
    return "".join(text for text in texts if isinstance(text, str) and not text.startswith(_BILLING))


def _heard(role: str, blocks: list[dict]) -> list[dict]:
    """One message as chat has it: results of tools first, each a message of its own, as the model reads them."""
    if role == "system":
        return [{"role": "system", "content": text}] if (text := _system(blocks)) else []
    heard: list[dict] = []
    parts: list[dict] = []
    calls: list[dict] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result":
            heard.append({"role": "tool", "content": block.get("content")})
        elif kind == "tool_use":
            given = block.get("input")
            # What is no object comes back as one that is empty.
            arguments = given if isinstance(given, dict) else {}
            calls.append({"function": {"name": block.get("name"), "arguments": arguments}})
        elif kind not in ("thinking", "redacted_thinking"):
            parts.append(block)
    if parts or calls or not heard:
        message: dict = {"role": role, "content": parts}
        if calls:
            message["tool_calls"] = calls
        heard.append(message)
    return heard


def _add(heard: list[dict], more: list[dict]) -> None:
    """Appends messages; a harness may send one answer back as several messages in a row.

    The lists of a message are `_heard`'s own: they grow in place, for a copy at each message would be quadratic.
    """
    last = heard[-1] if heard else {}
    if more and last.get("role") == more[0].get("role") == "assistant":
        last["content"] += more[0]["content"]
        if calls := more[0].get("tool_calls"):
            last.setdefault("tool_calls", []).extend(calls)
        more = more[1:]
    heard.extend(more)


# Answers


def _arguments(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text


def _reply(blocks: list[dict], stop_reason: str | None) -> Reply:
    finish = _FINISH.get(stop_reason, "stop") if stop_reason else None
    return Reply({"role": "assistant", "content": blocks}, finish)
