"""`/v1/responses`: OpenAI's Responses format, with the whole conversation in each request.

Nothing is kept between requests, so what refers to an earlier answer is refused with a sentence. Tools that OpenAI's
service runs are left out, and the caller is told which; tools that the client runs stay.
"""

from collections.abc import Collection

import msgspec

from serving.gateway.dialects.base import (
    SAMPLING,
    Dialect,
    Reply,
    encode_text,
    expect,
    left_out,
    without,
    word,
)
from serving.gateway.dialects.event_data import data_of
from serving.gateway.dialects.media import check_url, plain_parts
from serving.gateway.errors import BadRequest, GatewayError

_encode = msgspec.json.encode
_ELSEWHERE = {
    "previous_response_id": "previous_response_not_found",
    "conversation": "conversation_not_found",
    "prompt": "prompt_not_found",
}
"""Fields that refer to what OpenAI's service keeps, and OpenAI's code for what it does not have."""
_INCLUDE = frozenset(
    {
        *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results"),
        *("message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content"),
    }
)
_TIERS = frozenset({"auto", "default", "flex", "scale", "priority"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_TEXTS = frozenset({"input_text", "output_text", "text", "refusal"})
_MEDIA = {"input_image": "image_url", "input_video": "video_url", "input_audio": "audio_url"}
_URLS = (*_MEDIA.values(), "file_url")
_TOOLS = frozenset({"function", "custom", "namespace"})
_CONTENTS = ("content", "output")
"""Fields of an item that hold parts."""


class _Event(msgspec.Struct):
    type: str = ""
    item: dict | None = None
    item_id: str = ""
    delta: str | dict | None = None


class _Response(msgspec.Struct):
    output: list[dict]
    status: str | None = None


_events = msgspec.json.Decoder(list[_Event])
_response = msgspec.json.Decoder(_Response)


class Responses(Dialect):
    """Responses. The engine takes the answer's id from the body."""

    name = "responses"
    path = "/v1/responses"
    id_prefix = engine_prefix = "resp_"
    terminal = (b"event: response.completed", b"event: response.incomplete", b"event: response.failed")
    limits = ("max_output_tokens",)
    sent = (SAMPLING - {"max_tokens", "n", "echo", "min_tokens", "bad_words", "response_format"}) | {
        *("input", "instructions", "include", "max_output_tokens", "max_tool_calls", "parallel_tool_calls"),
        *("reasoning", "include_reasoning", "text", "tool_choice", "tools", "top_logprobs", "truncation", "stream"),
        *("metadata", "service_tier", "chat_template_kwargs"),
    }
    accepted = frozenset(
        {"model", "user", "store", "background", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
        | {"stream_options", "client_metadata", *_ELSEWHERE}
    )

    def refuse(self, body: dict) -> None:
        for name, code in _ELSEWHERE.items():
            if body.get(name) is not None:
                error = BadRequest(
                    f"`{name}` refers to what was kept of an earlier request, and nothing is kept here: send the whole "
                    "conversation in `input`.",
                    param=name,
                )
                error.code = code
                raise error
        if expect(body, "background", bool, False):
            raise BadRequest("Answers in the background are not kept here: leave `background` out.", param="background")

    def prompts(self, body: dict) -> int:
        return 1

    def heard(self, body: dict, media_domains: Collection[str]) -> list[dict]:
        given = body.get("input")
        heard: list[dict] = []
        if instructions := expect(body, "instructions", str, ""):
            heard.append({"role": "system", "content": instructions})
        if isinstance(given, str):
            return [*heard, {"role": "user", "content": given}]
        if not isinstance(given, list) or not given:
            raise BadRequest("`input` must be a string, or a list of at least one item.", param="input")
        for place, item in enumerate(given):
            if not isinstance(item, dict):
                raise BadRequest("Each item of `input` must be an object.", param=f"input[{place}]")
            for name in _CONTENTS:
                _check_media(item.get(name), media_domains, f"input[{place}].{name}")
        _hear(heard, given)
        return heard

    def said(self, message: dict) -> dict:
        heard: list[dict] = []
        _hear(heard, message["output"])
        return heard[0] if heard else {"role": "assistant", "content": []}

    def keep_from_engine(self, forward: dict, dropped: list[str]) -> None:
        if isinstance(forward["input"], list):
            forward["input"] = [
                {
                    name: plain_parts(value, f"input[{place}].{name}", dropped) if name in _CONTENTS else value
                    for name, value in item.items()
                }
                for place, item in enumerate(forward["input"])
            ]

    def repair(self, forward: dict, dropped: list[str]) -> None:
        tools = forward.get("tools")
        tools = list(tools) if isinstance(tools, list) else []
        if isinstance(forward["input"], list):
            forward["input"] = _repaired_items(forward["input"], tools, dropped)
        kept = _repaired_tools(tools, dropped)
        if kept or "tools" in forward:
            forward["tools"] = kept
        _repair_choice(forward, kept, dropped)
        include = forward.get("include")
        if isinstance(include, list):
            forward["include"] = [name for name in include if word(name) in _INCLUDE]
            dropped += [f"include.{word(name)}" for name in include if word(name) not in _INCLUDE]
        if forward.get("service_tier") is not None and word(forward["service_tier"]) not in _TIERS:
            del forward["service_tier"]
            dropped.append("service_tier")

    def leave_out_media(self, body: dict, dropped: list[str]) -> None:
        for place, item in enumerate(body["input"] if isinstance(body["input"], list) else ()):
            for name in _CONTENTS:
                if name in item:
                    item[name] = without(item[name], _MEDIA, f"input[{place}].{name}", dropped, "input_text")

    def seal(self, body: dict, turn_id: str) -> None:
        body["request_id"] = turn_id

    def replies(self, body: bytes) -> dict[int, Reply]:
        response = _response.decode(body)
        finish = "length" if response.status == "incomplete" else "stop"
        return {0: Reply({"role": "assistant", "output": response.output}, _finish(response.output) or finish)}

    def stream_replies(self, events: bytes) -> dict[int, Reply]:
        items: dict[str, dict] = {}
        pieces: dict[str, list[str]] = {}
        finish: str | None = None
        for event in _events.decode(data_of(events)):
            if event.item is not None:
                name = str(event.item.get("id"))
                items[name], pieces[name] = event.item, []
                if event.type == "response.output_item.done":
                    finish = _finish([event.item]) or finish or "stop"
            elif event.type == "response.output_text.delta" and isinstance(event.delta, str):
                pieces.setdefault(event.item_id, []).append(event.delta)
        for name, item in items.items():
            if pieces[name]:  # an item that is not done
                item["content"] = [*_parts(item.get("content")), {"type": "output_text", "text": "".join(pieces[name])}]
        if not items:
            return {}
        return {0: Reply({"role": "assistant", "output": list(items.values())}, finish)}

    def error_event(self, error: GatewayError) -> bytes:
        """A failed response: what the clients of this format look for, whatever came before."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error" if error.status >= 500 else error.code
        response = {
            "object": "response",
            "status": "failed",
            "error": {"code": code, "message": error.message},
            "output": [],
        }
        event = {"type": "response.failed", "response": response}
        return b"event: response.failed\ndata: " + _encode(event) + b"\n\n"


def _check_media(parts: object, domains: Collection[str], where: str) -> None:
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        if not isinstance(part, dict):
            raise BadRequest("Each part of a content must be an object.", param=f"{where}[{place}]")
        for name in _URLS:  # whatever the type: an engine may know a part by its field
            if part.get(name) is not None:
                check_url(part[name], domains, f"{where}[{place}].{name}")


# The conversation


def _hear(heard: list[dict], items: list[dict]) -> None:
    """Items as chat has them: what the assistant said and called in a row is one message.

    The lists of such a message are its own and grow in place: a copy at each item would be quadratic.
    """
    for item in items:
        kind = word(item.get("type", "message"))
        if kind in _OUTPUTS:
            heard.append({"role": "tool", "content": item.get("output")})
        elif kind in _CALLS:
            name = "arguments" if kind == "function_call" else "input"
            call = {"function": {"name": item.get("name"), "arguments": item.get(name)}}
            _assistant(heard).setdefault("tool_calls", []).append(call)
        elif kind == "message" and item.get("role") == "assistant":
            _assistant(heard)["content"] += _parts(item.get("content"))
        elif kind == "message":
            heard.append({"role": item.get("role"), "content": item.get("content")})
        elif kind not in ("reasoning", "additional_tools"):
            heard.append({"role": kind, "content": encode_text({k: v for k, v in item.items() if k != "id"})})


def _assistant(heard: list[dict]) -> dict:
    if not heard or heard[-1]["role"] != "assistant" or not isinstance(heard[-1]["content"], list):
        heard.append({"role": "assistant", "content": []})
    return heard[-1]


def _parts(content: object) -> list:
    return [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []


# Repairs


def _repaired_items(items: list[dict], tools: list, dropped: list[str]) -> list[dict]:
    """The items that an engine takes; tools that come as an item are added to `tools`."""
    kept = []
    for place, item in enumerate(items):
        where, kind = f"input[{place}]", word(item.get("type", "message"))
        if kind == "additional_tools":
            more = item.get("tools")
            tools += more if isinstance(more, list) else []
        elif kind == "item_reference":
            raise BadRequest("Items are not kept here: send them whole.", param=where)
        elif kind == "reasoning":
            # Encrypted reasoning is another service's: no engine reads it.
            plain = {name: value for name, value in item.items() if name != "encrypted_content"}
            if plain.get("content") or plain.get("summary"):
                kept.append(plain)
            elif item.get("encrypted_content"):
                dropped.append(where)
        elif kind == "message":
            kept.append({**item, "content": _repaired_parts(item.get("content"), f"{where}.content", dropped)})
        elif kind in _OUTPUTS:
            kept.append({**item, "output": _repaired_parts(item.get("output"), f"{where}.output", dropped)})
        elif kind in _CALLS:
            kept.append(dict(item))
        else:
            dropped.append(where)
    return kept


def _repaired_parts(parts: object, where: str, dropped: list[str]) -> object:
    if parts is None:
        return ""
    if not isinstance(parts, list):
        return parts if isinstance(parts, str) else encode_text(parts)
    kept = []
    for place, part in enumerate(parts):
        kind = word(part.get("type"))
        if kind in _TEXTS or (kind in _MEDIA and part.get(_MEDIA[kind]) is not None):
            kept.append(part)
        else:
            dropped.append(f"{where}[{place}]")
            kept.append(left_out(kind, "input_text"))
    return kept


def _repaired_tools(tools: list, dropped: list[str]) -> list[dict]:
    """Client-run tools. The namespace `functions` is the plain one; a free-form tool loses its grammar, not itself."""
    kept: list[dict] = []
    for place, tool in enumerate(tools):
        kind = word(tool.get("type")) if isinstance(tool, dict) else ""
        if kind == "namespace" and tool.get("name") == "functions" and isinstance(tool.get("tools"), list):
            kept += _repaired_tools(tool["tools"], dropped)
        elif kind == "custom" and isinstance(tool.get("format"), dict) and tool["format"].get("type") != "text":
            dropped.append(f"tools[{place}].format")
            kept.append({name: value for name, value in tool.items() if name != "format"})
        elif kind in _TOOLS:
            kept.append(tool)
        else:
            dropped.append(f"tools[{place}]")
    return kept


def _repair_choice(forward: dict, tools: list[dict], dropped: list[str]) -> None:
    """A choice among tools that were left out is no choice; of allowed tools, the mode alone is an engine's."""
    choice = forward.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        mode = choice.get("mode")
        forward["tool_choice"] = choice = mode if mode in ("auto", "required") else "auto"
        dropped.append("tool_choice.tools")
    kinds = {word(tool.get("type")) for tool in tools}
    if isinstance(choice, dict) and word(choice.get("type")) not in kinds:
        dropped.append("tool_choice")
        forward["tool_choice"] = "auto"
    elif choice == "required" and not tools:
        dropped.append("tool_choice")
        forward["tool_choice"] = "none"


# Answers


def _finish(items: list[dict]) -> str | None:
    return "tool_calls" if any(word(item.get("type")) in _CALLS for item in items) else None
