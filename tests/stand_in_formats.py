"""The wire formats of the stand-in engine, each event as vLLM 0.32 makes it: chat, completions, messages, responses."""

import json
from collections.abc import Iterator
from itertools import pairwise

from tests.stand_in_answers import Format, Output, said_by_role

CALLS = ("function_call", "custom_tool_call")
"""The types of items of responses that call a tool."""


class Chat(Format):
    """`/v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"
    kind = "chatcmpl"

    @staticmethod
    def said(body: dict) -> list[str | None]:
        return said_by_role(body["messages"])

    def events(self, output: Output) -> Iterator[dict]:
        delta: dict = {"content": output.pieces[-1]}
        if self.tools:
            texts = self.spelled(output)
            place, first = len(texts) - 1, texts[-1] == output.pieces[-1]
            function = {"arguments": output.pieces[-1]} | ({"name": self.tools[place].name} if first else {})
            head = {"id": self.call_id(place), "type": "function"} if first else {"id": None}
            delta = {"tool_calls": [{"index": place, **head, "function": function}]}
        yield self._chunk([{"index": output.index, "delta": delta, "finish_reason": self._finish(output)}])

    def ending(self, outputs: list[Output]) -> bytes:
        usage = b""
        if (self.body.get("stream_options") or {}).get("include_usage"):
            usage = self.encode(self._chunk([]) | {"usage": self.usage(outputs)})
        return usage + b"data: [DONE]\n\n"

    def whole(self, outputs: list[Output]) -> dict:
        choices = []
        for output in outputs:
            message: dict = {"role": "assistant", "content": output.text}
            if self.tools:
                calls = [
                    {"id": self.call_id(place), "type": "function", "function": {"name": tool.name, "arguments": text}}
                    for place, (tool, text) in enumerate(zip(self.tools, self.spelled(output), strict=False))
                ]
                message = {"role": "assistant", "content": None, "tool_calls": calls}
            choices.append({"index": output.index, "message": message, "finish_reason": self._finish(output)})
        return self._chunk(choices) | {"object": "chat.completion", "usage": self.usage(outputs)}

    def _finish(self, output: Output) -> str | None:
        return "tool_calls" if self.tools and output.finish == "stop" else output.finish

    def _chunk(self, choices: list) -> dict:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.body["model"],
            "choices": choices,
        }


class Completions(Format):
    """`/v1/completions`."""

    name = "completions"
    path = "/v1/completions"
    kind = "cmpl"

    @staticmethod
    def said(body: dict) -> list[str | None]:
        return [str(body["prompt"])]

    def events(self, output: Output) -> Iterator[dict]:
        yield self._answer([{"index": output.index, "text": output.pieces[-1], "finish_reason": output.finish}])

    def ending(self, outputs: list[Output]) -> bytes:
        return b"data: [DONE]\n\n"

    def whole(self, outputs: list[Output]) -> dict:
        choices = [{"index": at.index, "text": at.text, "finish_reason": at.finish} for at in outputs]
        return self._answer(choices) | {"usage": self.usage(outputs)}

    def _answer(self, choices: list) -> dict:
        model = self.body["model"]
        return {"id": self.id, "object": "text_completion", "created": 1, "model": model, "choices": choices}


class Messages(Format):
    """`/v1/messages`; vLLM gives its answers ids of chat's shape."""

    name = "messages"
    path = "/v1/messages"
    kind = "chatcmpl"

    @staticmethod
    def said(body: dict) -> list[str | None]:
        return said_by_role(body["messages"])

    def events(self, output: Output) -> Iterator[dict]:
        texts = self.spelled(output) or [output.text]
        place = len(texts) - 1
        if len(output.pieces) == 1:
            usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
            yield {"type": "message_start", "message": self._message([]) | {"stop_reason": None, "usage": usage}}
        elif texts[-1] == output.pieces[-1]:
            yield {"type": "content_block_stop", "index": place - 1}
        if texts[-1] == output.pieces[-1]:
            block = self._tool_use(place, {}) if self.tools else {"type": "text", "text": ""}
            yield {"type": "content_block_start", "index": place, "content_block": block}
        delta = {"type": "text_delta", "text": output.pieces[-1]}
        if self.tools:
            delta = {"type": "input_json_delta", "partial_json": output.pieces[-1]}
        yield {"type": "content_block_delta", "index": place, "delta": delta}

    def ending(self, outputs: list[Output]) -> bytes:
        stop = {"stop_reason": self._reason(outputs[0]), "stop_sequence": None}
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": len(outputs[0].pieces)}
        last = max(len(self.spelled(outputs[0])) - 1, 0)
        events: list[dict] = [{"type": "content_block_stop", "index": last}]
        events += [{"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]
        return b"".join(self.encode(event) for event in events)

    def whole(self, outputs: list[Output]) -> dict:
        (output,) = outputs
        blocks = [self._tool_use(place, json.loads(text)) for place, text in enumerate(self.spelled(output))]
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": len(output.pieces)}
        content = blocks or [{"type": "text", "text": output.text}]
        return self._message(content) | {"stop_reason": self._reason(output), "usage": usage}

    def _tool_use(self, place: int, given: dict) -> dict:
        return {"type": "tool_use", "id": self.call_id(place), "name": self.tools[place].name, "input": given}

    def _message(self, content: list) -> dict:
        model = self.body["model"]
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "model": model}

    def _reason(self, output: Output) -> str:
        if output.finish == "length":
            return "max_tokens"
        return "tool_use" if self.tools and output.finish == "stop" else "end_turn"


class Responses(Format):
    """`/v1/responses`; vLLM takes the answer's id from the body."""

    name = "responses"
    path = "/v1/responses"
    kind = "resp"

    def __init__(self, request_id: str, body: dict, step: dict) -> None:
        super().__init__(request_id, body, step)
        self._sequence = 0

    @property
    def id(self) -> str:
        return self.body.get("request_id") or f"resp_{self.request_id}"

    @staticmethod
    def said(body: dict) -> list[str | None]:
        items = body["input"]
        if isinstance(items, str):
            return [items]
        said: list[str | None] = []
        for before, item in pairwise([{}, *items]):
            if item.get("type") not in CALLS:
                said += said_by_role([item] if item.get("type", "message") == "message" else [])
            elif before.get("type") not in CALLS:
                said.append(None)  # calls in a row are one answer
        return said

    @staticmethod
    def limit(body: dict) -> int | None:
        return body.get("max_output_tokens")

    def encode(self, event: dict) -> bytes:
        self._sequence += 1
        return super().encode({**event, "sequence_number": self._sequence - 1})

    def events(self, output: Output) -> Iterator[dict]:
        items = self._items(output)
        item, place = items[-1], len(items) - 1
        text = (self.spelled(output) or [output.text])[-1]
        if len(output.pieces) == 1:
            for name in ("created", "in_progress"):
                yield {"type": f"response.{name}", "response": self._response([], "in_progress")}
        elif text == output.pieces[-1]:
            yield from self._done(items[-2], place - 1)
        if text == output.pieces[-1]:
            yield {"type": "response.output_item.added", "output_index": place, "item": _begun(item)}
            if not self.tools:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield self._at("content_part.added", item, place, content_index=0, part=part)
        if not self.tools:
            yield self._at("output_text.delta", item, place, content_index=0, delta=output.pieces[-1], logprobs=[])
        else:
            yield self._at(f"{_spells(item)[0]}.delta", item, place, delta=output.pieces[-1])

    def ending(self, outputs: list[Output]) -> bytes:
        (output,) = outputs
        items = self._items(output)
        events = [
            *self._done(items[-1], len(items) - 1),
            {"type": "response.completed", "response": self.whole(outputs)},
        ]
        return b"".join(self.encode(event) for event in events)

    def _done(self, item: dict, place: int) -> Iterator[dict]:
        if item["type"] == "message":
            (part,) = item["content"]
            yield self._at("output_text.done", item, place, content_index=0, text=part["text"], logprobs=[])
            yield self._at("content_part.done", item, place, content_index=0, part=part)
        else:
            name, text = _spells(item)
            yield self._at(f"{name}.done", item, place, **{text: item[text]})
        yield {"type": "response.output_item.done", "output_index": place, "item": item}

    def whole(self, outputs: list[Output]) -> dict:
        (output,) = outputs
        counted = self.usage(outputs)
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": counted["completion_tokens"]}
        usage |= {"total_tokens": counted["total_tokens"]}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        status = "incomplete" if output.finish == "length" else "completed"
        return self._response(self._items(output), status) | {"usage": usage}

    def _at(self, name: str, item: dict, place: int, **more: object) -> dict:
        return {"type": f"response.{name}", "output_index": place, "item_id": item["id"], **more}

    def _items(self, output: Output) -> list[dict]:
        if not self.tools:
            part = {"type": "output_text", "text": output.text, "annotations": [], "logprobs": None}
            head = {"id": f"msg_{self.part}", "type": "message", "role": "assistant"}
            return [{**head, "content": [part], "status": "completed"}]
        return [self._tool_call(place, text) for place, text in enumerate(self.spelled(output))]

    def _tool_call(self, place: int, text: str) -> dict:
        tool = self.tools[place]
        call = {"call_id": self.call_id(place), "name": tool.name}
        if isinstance(tool.arguments, str):
            return {"type": "custom_tool_call", "id": f"ctc_{self.part}_{place}", **call, "input": text}
        head = {"type": "function_call", "id": f"fc_{self.part}_{place}", "namespace": tool.namespace}
        return {**head, **call, "arguments": text, "status": "completed"}

    def _response(self, output: list, status: str) -> dict:
        asked = {name: self.body.get(name) for name in ("instructions", "metadata", "reasoning", "text", "user")}
        return {
            **asked,
            "id": self.id,
            "object": "response",
            "created_at": 1,
            "model": self.body["model"],
            "output": output,
            "status": status,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": self.body.get("tool_choice") or "auto",
            "tools": self.body.get("tools") or [],
            "background": False,
            "max_output_tokens": self.body.get("max_output_tokens") or 1,
            "service_tier": "auto",
            "truncation": "disabled",
        }


def _spells(item: dict) -> tuple[str, str]:
    """How the events of a call are named that spell it, and its field."""
    custom = item["type"] == "custom_tool_call"
    return ("custom_tool_call_input", "input") if custom else ("function_call_arguments", "arguments")


def _begun(item: dict) -> dict:
    """An item of which nothing was said yet."""
    if item["type"] == "message":
        return {**item, "content": [], "status": "in_progress"}
    empty = {**item, _spells(item)[1]: ""}
    return empty | {"status": "in_progress"} if "status" in item else empty


FORMATS: tuple[type[Format], ...] = (Chat, Completions, Messages, Responses)
"""Every format that the stand-in speaks."""
