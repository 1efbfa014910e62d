"""The wire formats of the stand-in engine, each event as vLLM 0.32 makes it: chat, completions, messages, responses.

A `Format` answers one request. It reads what a script is chosen by (what the user said, how many answers came
before), gives the events of each token, those that end the stream, and the JSON answer.
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
    """One request and its answer. `tool` is the call that its tokens spell, None where they are plain text."""

    name: str
    path: str
    kind: str

    def __init__(self, request_id: str, body: dict, tool: Tool | None) -> None:
        self.request_id, self.body, self.tool = request_id, body, tool
        self.part = uuid.uuid4().hex[:12]
        """What makes the ids of the answer's parts unique."""

    @property
    def id(self) -> str:
        """The answer's id, as vLLM makes it."""
        return f"{self.kind}-{self.request_id}"

    @property
    def call_id(self) -> str:
        """The tool call's id."""
        return f"call-{self.part}"

    @staticmethod
    @abstractmethod
    def said(body: dict) -> tuple[str, int]:
        """All that the user said, and how many answers the conversation has."""

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

    def encode(self, event: dict) -> bytes:
        """One event of a stream."""
        name = f"event: {event['type']}\n" if "type" in event else ""
        return f"{name}data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


class Chat(Format):
    """`/v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"
    kind = "chatcmpl"

    @staticmethod
    def said(body: dict) -> tuple[str, int]:
        return said_by_role(body["messages"])

    def events(self, output: Output) -> Iterator[dict]:
        delta: dict = {"content": output.pieces[-1]}
        if self.tool:
            first = len(output.pieces) == 1
            function = {"arguments": output.pieces[-1]} | ({"name": self.tool.name} if first else {})
            head = {"id": self.call_id, "type": "function"} if first else {"id": None}
            delta = {"tool_calls": [{"index": 0, **head, "function": function}]}
        yield self._chunk([{"index": output.index, "delta": delta, "finish_reason": self._finish(output)}])

    def ending(self, outputs: list[Output]) -> bytes:
        usage = b""
        if (self.body.get("stream_options") or {}).get("include_usage"):
            usage = self.encode(self._chunk([]) | {"usage": usage_of(outputs)})
        return usage + b"data: [DONE]\n\n"

    def whole(self, outputs: list[Output]) -> dict:
        choices = []
        for output in outputs:
            message: dict = {"role": "assistant", "content": output.text}
            if self.tool:
                function = {"name": self.tool.name, "arguments": output.text}
                call = {"id": self.call_id, "type": "function", "function": function}
                message = {"role": "assistant", "content": None, "tool_calls": [call]}
            choices.append({"index": output.index, "message": message, "finish_reason": self._finish(output)})
        return self._chunk(choices) | {"object": "chat.completion", "usage": usage_of(outputs)}

    def _finish(self, output: Output) -> str | None:
        return "tool_calls" if self.tool and output.finish == "stop" else output.finish

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
    def said(body: dict) -> tuple[str, int]:
        return str(body["prompt"]), 0

    def events(self, output: Output) -> Iterator[dict]:
        yield self._answer([{"index": output.index, "text": output.pieces[-1], "finish_reason": output.finish}])

    def ending(self, outputs: list[Output]) -> bytes:
        return b"data: [DONE]\n\n"

    def whole(self, outputs: list[Output]) -> dict:
        choices = [{"index": at.index, "text": at.text, "finish_reason": at.finish} for at in outputs]
        return self._answer(choices) | {"usage": usage_of(outputs)}

    def _answer(self, choices: list) -> dict:
        model = self.body["model"]
        return {"id": self.id, "object": "text_completion", "created": 1, "model": model, "choices": choices}


class Messages(Format):
    """`/v1/messages`; vLLM gives its answers ids of chat's shape."""

    name = "messages"
    path = "/v1/messages"
    kind = "chatcmpl"

    @staticmethod
    def said(body: dict) -> tuple[str, int]:
        return said_by_role(body["messages"])

    def events(self, output: Output) -> Iterator[dict]:
        if len(output.pieces) == 1:
            usage = {"input_tokens": 1, "output_tokens": 0}
            yield {"type": "message_start", "message": self._message([]) | {"stop_reason": None, "usage": usage}}
            block = {"type": "text", "text": ""}
            if self.tool:
                block = {"type": "tool_use", "id": self.call_id, "name": self.tool.name, "input": {}}
            yield {"type": "content_block_start", "index": 0, "content_block": block}
        delta = {"type": "text_delta", "text": output.pieces[-1]}
        if self.tool:
            delta = {"type": "input_json_delta", "partial_json": output.pieces[-1]}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}

    def ending(self, outputs: list[Output]) -> bytes:
        stop = {"stop_reason": self._reason(outputs[0]), "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": len(outputs[0].pieces)}
        events: list[dict] = [{"type": "content_block_stop", "index": 0}]
        events += [{"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]
        return b"".join(self.encode(event) for event in events)

    def whole(self, outputs: list[Output]) -> dict:
        (output,) = outputs
        block: dict = {"type": "text", "text": output.text}
        if self.tool:
            given = json.loads(output.text)
            block = {"type": "tool_use", "id": self.call_id, "name": self.tool.name, "input": given}
        usage = {"input_tokens": 1, "output_tokens": len(output.pieces)}
        return self._message([block]) | {"stop_reason": self._reason(output), "usage": usage}

    def _message(self, content: list) -> dict:
        model = self.body["model"]
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "model": model}

    def _reason(self, output: Output) -> str:
        if output.finish == "length":
            return "max_tokens"
        return "tool_use" if self.tool and output.finish == "stop" else "end_turn"


class Responses(Format):
    """`/v1/responses`; vLLM takes the answer's id from the body."""

    name = "responses"
    path = "/v1/responses"
    kind = "resp"

    def __init__(self, request_id: str, body: dict, tool: Tool | None) -> None:
        super().__init__(request_id, body, tool)
        self._sequence = 0

    @property
    def id(self) -> str:
        return self.body.get("request_id") or f"resp_{self.request_id}"

    @staticmethod
    def said(body: dict) -> tuple[str, int]:
        items = body["input"]
        if isinstance(items, str):
            return items, 0
        messages = [item for item in items if item.get("type", "message") == "message"]
        text, answers = said_by_role(messages)
        return text, answers + sum(item.get("type") in ("function_call", "custom_tool_call") for item in items)

    @staticmethod
    def limit(body: dict) -> int | None:
        return body.get("max_output_tokens")

    def encode(self, event: dict) -> bytes:
        self._sequence += 1
        return super().encode({**event, "sequence_number": self._sequence - 1})

    def events(self, output: Output) -> Iterator[dict]:
        item = self._item(output, done=False)
        if len(output.pieces) == 1:
            for name in ("created", "in_progress"):
                yield {"type": f"response.{name}", "response": self._response([], "in_progress")}
            yield {"type": "response.output_item.added", "output_index": 0, "item": item}
            if not self.tool:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield self._at("content_part.added", item, content_index=0, part=part)
        if not self.tool:
            yield self._at("output_text.delta", item, content_index=0, delta=output.pieces[-1], logprobs=[])
        else:
            yield self._at(f"{self._call}.delta", item, delta=output.pieces[-1])

    def ending(self, outputs: list[Output]) -> bytes:
        (output,) = outputs
        item, events = self._item(output, done=True), []
        if not self.tool:
            part = item["content"][0]
            events.append(self._at("output_text.done", item, content_index=0, text=output.text, logprobs=[]))
            events.append(self._at("content_part.done", item, content_index=0, part=part))
        else:
            text = {"input" if isinstance(self.tool.arguments, str) else "arguments": output.text}
            events.append(self._at(f"{self._call}.done", item, **text))
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        events.append({"type": "response.completed", "response": self.whole(outputs)})
        return b"".join(self.encode(event) for event in events)

    def whole(self, outputs: list[Output]) -> dict:
        (output,) = outputs
        tokens = len(output.pieces)
        usage = {"input_tokens": 1, "output_tokens": tokens, "total_tokens": tokens + 1}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        status = "incomplete" if output.finish == "length" else "completed"
        return self._response([self._item(output, done=True)], status) | {"usage": usage}

    @property
    def _call(self) -> str:
        custom = self.tool is not None and isinstance(self.tool.arguments, str)
        return "custom_tool_call_input" if custom else "function_call_arguments"

    def _at(self, name: str, item: dict, **more: object) -> dict:
        return {"type": f"response.{name}", "output_index": 0, "item_id": item["id"], **more}

    def _item(self, output: Output, *, done: bool) -> dict:
        text, status = (output.text, "completed") if done else ("", "in_progress")
        if not self.tool:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
            head = {"id": f"msg_{self.part}", "type": "message", "role": "assistant"}
            return {**head, "content": [part] if done else [], "status": status}
        call = {"call_id": self.call_id, "name": self.tool.name}
        if isinstance(self.tool.arguments, str):
            return {"type": "custom_tool_call", "id": f"ctc_{self.part}", **call, "input": text}
        namespace = {"namespace": self.tool.namespace}
        head = {"type": "function_call", "id": f"fc_{self.part}"}
        return {**head, **call, **namespace, "arguments": text, "status": status}

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


def said_by_role(messages: list[dict]) -> tuple[str, int]:
    """What the messages of the role `user` say, and how many are the assistant's."""
    said = []
    for message in messages:
        content = message.get("content") if message["role"] == "user" else None
        said += [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    return "\n".join(said), sum(message["role"] == "assistant" for message in messages)


def usage_of(outputs: list[Output]) -> dict:
    """Tokens counted as OpenAI counts them; a prompt has one."""
    tokens = sum(len(output.pieces) for output in outputs)
    return {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}


FORMATS: tuple[type[Format], ...] = (Chat, Completions, Messages, Responses)
"""Every format that the stand-in speaks."""
