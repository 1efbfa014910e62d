"""`/v1/chat/completions`: OpenAI's chat format."""

from collections.abc import Callable, Collection

import msgspec

from serving.gateway.dialects.base import SAMPLING, Dialect, Reply, encode_text, expect, without
from serving.gateway.dialects.event_data import decode_events, merged
from serving.gateway.dialects.media import check_url, only_text, plain_parts
from serving.gateway.errors import BadRequest


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: object = None


class _CallPiece(msgspec.Struct):
    index: int | None = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict] | None = None


class _FullChoice(msgspec.Struct):
    message: _Message
    index: int = 0
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_FullChoice]


class _Call(msgspec.Struct):
    """A tool call that comes in pieces: the first names it, the others continue its arguments."""

    id: str | None
    name: str
    arguments: list[str]

    def add(self, function: _Function | None) -> None:
        if function is not None:
            self.name = function.name or self.name
            given = function.arguments
            if given is not None:  # of what should be a text, an engine's parser may make an object
                self.arguments.append(given if isinstance(given, str) else encode_text(given))

    def whole(self) -> dict:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


_chunks = msgspec.json.Decoder(list[_Chunk])
_completion = msgspec.json.Decoder(_Completion)
_MEDIA = ("image_url", "video_url", "audio_url")
_KINDS = (*_MEDIA, "input_image", "input_audio", "image_pil", "image_embeds", "audio_embeds", "video_embeds")
"""Types of parts that only a model with eyes or ears takes. `prompt_embeds` are a prompt, whatever the model."""


class Chat(Dialect):
    """Chat completions. `max_completion_tokens` is the newer name of `max_tokens`; both are clamped."""

    name = "chat"
    path = "/v1/chat/completions"
    id_prefix = engine_prefix = "chatcmpl-"
    limits = ("max_tokens", "max_completion_tokens")
    sent = SAMPLING | {
        *("messages", "max_completion_tokens", "logprobs", "top_logprobs", "stream", "stream_options"),
        *("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning"),
        *("thinking_token_budget", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
        "documents",
    }
    accepted = frozenset(
        {
            *("model", "user", "metadata", "store", "service_tier", "prediction", "modalities", "audio"),
            *("prompt_cache_key", "safety_identifier", "verbosity", "web_search_options"),
        }
    )

    def prompts(self, body: dict) -> int:
        return 1

    def heard(self, body: dict, media_domains: Collection[str]) -> list[dict]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("`messages` must be a list of at least one message.", param="messages")
        for place, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise BadRequest("Each message must be an object with a `role`.", param=f"messages[{place}]")
            parts = message.get("content")
            if isinstance(parts, list) and not only_text(parts):
                _check_media(parts, media_domains, f"messages[{place}].content")
        expect(body, "stream_options", dict, None)
        return messages

    def plain(self, messages: list[dict]) -> bool:
        return all(only_text(parts) for message in messages if isinstance(parts := message.get("content"), list))

    def keep_from_engine(self, forward: dict, dropped: list[str]) -> None:
        forward["messages"] = _changed(forward["messages"], lambda parts, where: plain_parts(parts, where, dropped))

    def repair(self, forward: dict, dropped: list[str]) -> None:
        """Files are left out: no engine reads them."""
        forward["messages"] = _changed(
            forward["messages"], lambda parts, where: without(parts, ("file",), where, dropped)
        )

    def leave_out_media(self, body: dict, dropped: list[str]) -> None:
        body["messages"] = _changed(body["messages"], lambda parts, where: without(parts, _KINDS, where, dropped))

    def replies(self, body: bytes) -> dict[int, Reply]:
        return {
            choice.index: Reply(_assistant(said.content, said.tool_calls, said.reasoning), choice.finish_reason)
            for choice in _completion.decode(body).choices
            for said in (choice.message,)
        }

    def stream_replies(self, events: bytes) -> dict[int, Reply]:
        text: dict[int, list[str]] = {}
        thought: dict[int, list[str]] = {}
        calls: dict[int, dict[int | None, _Call]] = {}
        finish: dict[int, str] = {}
        for chunk in decode_events(merged(events, b'"delta":{"content":"'), _chunks):
            for choice in chunk.choices:
                delta, pieces = choice.delta, text.get(choice.index)
                if pieces is None:
                    pieces = text[choice.index] = []
                if choice.finish_reason:
                    finish[choice.index] = choice.finish_reason
                if delta is not None:
                    if delta.content:
                        pieces.append(delta.content)
                    if delta.reasoning:
                        thought.setdefault(choice.index, []).append(delta.reasoning)
                    for piece in delta.tool_calls or ():
                        made = calls.setdefault(choice.index, {})
                        made.setdefault(piece.index, _Call(piece.id, "", [])).add(piece.function)
        return {
            index: Reply(
                _assistant(
                    "".join(pieces),
                    [call.whole() for call in calls.get(index, {}).values()],
                    "".join(thought.get(index, ())),
                ),
                finish.get(index),
            )
            for index, pieces in text.items()
        }


def _assistant(content: str | None, tool_calls: list[dict] | None, reasoning: str | None) -> dict:
    message: dict = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning  # its tokens are among the ids: what is recorded must show them
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def _changed(messages: list[dict], change: Callable[[list, str], object]) -> list[dict]:
    """The messages; those whose content is more than text as copies with what `change(parts, where)` makes of it."""
    return [
        {**message, "content": change(parts, f"messages[{place}].content")}
        if isinstance(parts := message.get("content"), list) and not only_text(parts)
        else message
        for place, message in enumerate(messages)
    ]


def _check_media(parts: list, domains: Collection[str], where: str) -> None:
    """Refuses media by URL unless its host is allowed: the engine would fetch it from inside."""
    for place, part in enumerate(parts):
        if not isinstance(part, dict):
            raise BadRequest("Each part of a content must be an object.", param=f"{where}[{place}]")
        for kind in _MEDIA:
            media = part.get(kind)
            url = media.get("url") if isinstance(media, dict) else media
            if url is not None:
                check_url(url, domains, f"{where}[{place}].{kind}")
