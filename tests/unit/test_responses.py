"""OpenAI's Responses: what goes to the engine, what is heard of the conversation, how answers and errors look."""

import json
from typing import Any

import pytest

from serving.gateway.dialects import DIALECTS
from serving.gateway.dialects.base import Ask
from serving.gateway.errors import BadRequest, EngineLost
from serving.gateway.sessions import Conversation

RESPONSES = DIALECTS["/v1/responses"]
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": None}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "bash", "arguments": '{"command":"ls"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object"}}


def read(given: object, **more: Any) -> Ask:
    body = {"model": "m", "input": given, **more}
    return RESPONSES.read(json.dumps(body).encode(), admin=False, max_samples=4, media_domains=("images.example",))


def sent(given: object, *, media: bool = True, pinned: dict | None = None, **more: Any) -> dict:
    ask = read(given, **more)
    body = RESPONSES.engine_body(
        ask, served_model="policy", turn_id="resp_1", longest=1024, media=media, salt="s", pinned=pinned or {}
    )
    return json.loads(body)


def chain(given: list, answer: list | None = None, **more: Any) -> tuple[str, ...]:
    said = RESPONSES.said({"role": "assistant", "output": answer}) if answer else None
    return Conversation(b"secret", "owner", read(given, **more).messages).close(said)[1]


def test_what_an_engine_takes_arrives_as_it_was_sent_with_the_turns_id() -> None:
    given = [HELLO, SAID, CALL, OUTPUT]
    more = {"instructions": "be kind", "tools": [TOOL], "tool_choice": "auto", "metadata": {"k": "v"}, "stream": True}
    ask = {"model": "m", **more, "request_id": "mine", "store": False, "user": "anna", "max_output_tokens": 9000}
    assert sent(given, **ask) == {
        **more,
        "input": given,
        "model": "policy",
        "cache_salt": "s",
        "request_id": "resp_1",
        "max_output_tokens": 1024,
    }
    assert read(given, **ask).dropped == []
    assert "anna" not in read(given, **ask, client_metadata={"x-codex-installation-id": "anna-1"}).recorded
    pinned = sent("hi", pinned={"max_tokens": 32.0, "temperature": 1.0, "min_p": 0.0})
    assert (pinned["max_output_tokens"], pinned["temperature"], "max_tokens" in pinned) == (32, 1.0, False)


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_what_refers_to_something_kept_is_a_sentence(name: str) -> None:
    with pytest.raises(BadRequest, match="send the whole conversation") as refused:
        read("hi", **{name: "x"})
    assert refused.value.code.endswith("_not_found")
    with pytest.raises(BadRequest, match="background"):
        read("hi", background=True)
    with pytest.raises(BadRequest, match="send them whole"):
        read([{"type": "item_reference", "id": "x"}])


def test_codex_tools_reach_the_engine() -> None:
    grammar = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}
    functions = {"type": "namespace", "name": "functions", "tools": [TOOL, grammar]}
    ask = read([{"type": "additional_tools", "role": "developer", "tools": [functions]}, HELLO])
    assert ask.forward["tools"] == [TOOL, {"type": "custom", "name": "patch"}]
    assert ask.forward["input"] == [HELLO]
    assert ask.dropped == ["tools[1].format"]


def test_what_no_engine_takes_is_left_out_and_named() -> None:
    given = [
        HELLO,
        {"type": "web_search_call", "id": "w"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": [{"type": "input_file", "file_data": "JVBERi0="}]},
    ]
    ask = read(given, tools=[{"type": "web_search"}, TOOL], include=["web_search_call.action.sources"])
    assert ask.forward["input"][1]["content"] == [{"type": "input_text", "text": "[input_file left out]"}]
    assert ask.forward["tools"] == [TOOL]
    assert ask.forward["include"] == []
    assert ask.dropped == [
        *("input[1]", "input[2]", "input[3].content[0]", "tools[0]", "include.web_search_call.action.sources")
    ]
    forced = read("hi", tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
    assert forced.forward["tool_choice"] == "auto"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "bash"}]}
    assert read("hi", tools=[TOOL], tool_choice=allowed).forward["tool_choice"] == "required"


def test_media_by_url_is_refused_unless_its_host_is_allowed() -> None:
    def image(url: str) -> list[dict]:
        return [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]

    assert sent(image("https://images.example/a.png"))
    assert sent(image("data:image/png;base64,AA"))
    left_out = sent(image("data:image/png;base64,AA"), media=False)["input"][0]["content"]
    assert left_out == [{"type": "input_text", "text": "[input_image left out]"}]
    with pytest.raises(BadRequest, match="host is allowed"):
        read(image("http://10.0.0.1/"))
    known_by_its_field = {"type": "input_text", "text": "x", "image_url": "http://10.0.0.1/", "uuid": "1"}
    with pytest.raises(BadRequest, match="host is allowed"):
        read([{"role": "user", "content": [known_by_its_field]}])


def test_a_turn_finds_its_parent_whatever_the_harness_reshapes() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    first = chain([HELLO], [reasoning, SAID, CALL], instructions="be kind")
    sent_back = [{"role": "assistant", "content": "so"}, {**CALL, "id": "fc_9", "arguments": '{"command": "ls"}'}]
    second = chain([{"role": "user", "content": "hello"}, *sent_back, OUTPUT], [SAID], instructions="be kind")
    assert first[-1] in second[:-2]
    third = chain([HELLO, SAID, CALL, OUTPUT, SAID, HELLO], instructions="be kind")
    assert second[-1] in third
    assert first[-1] not in chain([HELLO, SAID, OUTPUT], instructions="be kind")


def test_answers_streamed_and_plain() -> None:
    payloads = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.added", "item": {"type": "message", "id": "msg_1", "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "s"},
        {"type": "response.output_item.done", "item": SAID},
        {"type": "response.output_item.added", "item": {**CALL, "arguments": ""}},
        {"type": "response.output_item.done", "item": CALL},
    ]
    stream = [b"event: %s\ndata: %s\n\n" % (p["type"].encode(), json.dumps(p).encode()) for p in payloads]
    plain = RESPONSES.replies(json.dumps({"output": [SAID, CALL], "status": "completed"}).encode())
    assert RESPONSES.stream_replies(b"".join(stream)) == plain
    assert plain[0].finish == "tool_calls"
    cut = RESPONSES.stream_replies(b"".join(stream[:3]))[0]
    assert (cut.finish, cut.message["output"][0]["content"][0]["text"]) == (None, "s")
    assert RESPONSES.replies(json.dumps({"output": [SAID], "status": "incomplete"}).encode())[0].finish == "length"


def test_an_answer_sent_back_as_very_many_items_is_read_at_once() -> None:
    """A step that copies what came before at each item or event would take minutes here."""
    many = 300_000
    (heard,) = RESPONSES.heard({"input": [SAID, CALL] * many}, ())
    assert (len(heard["content"]), len(heard["tool_calls"])) == (many, many)
    added = {"type": "response.output_item.added", "item": {"type": "message", "id": "msg_1", "content": []}}
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "sixteen letters "}
    event = b"data: %b\n\n"
    stream = event % json.dumps(added).encode() + event % json.dumps(delta).encode() * many
    text = RESPONSES.stream_replies(stream)[0].message["output"][0]["content"][0]["text"]
    assert len(text) == many * 16


def test_an_item_whose_type_is_assistant_is_no_message_of_the_assistant() -> None:
    heard = read([{"type": "assistant", "x": 1}, SAID, CALL]).messages
    assert [message["role"] for message in heard] == ["assistant", "assistant"]
    assert heard[0]["content"] == '{"type":"assistant","x":1}'
    assert heard[1]["content"] == SAID["content"]


def test_errors_are_openais_and_a_failed_response_in_mid_stream() -> None:
    event = RESPONSES.error_event(EngineLost("gone"))
    assert event.startswith(b"event: response.failed\ndata: {")
    failed = json.loads(event.partition(b"data: ")[2])
    assert failed["response"]["error"] == {"code": "server_error", "message": "gone"}
    body = {"error": {"message": "This model's maximum context length is 8.", "param": "input", "code": 400}}
    refused = json.loads(RESPONSES.engine_error(400, json.dumps(body).encode()))["error"]
    assert (refused["type"], refused["code"]) == ("invalid_request_error", "context_length_exceeded")
