"""Anthropic's format: what goes to the engine, what is heard of the conversation, how answers and errors look."""

import json
from typing import Any

import pytest

from serving.gateway.dialects import DIALECTS
from serving.gateway.dialects.base import Ask
from serving.gateway.errors import BadRequest, RateLimited, Unauthorized
from serving.gateway.sessions import Conversation

MESSAGES = DIALECTS["/v1/messages"]
HELLO = {"role": "user", "content": "hello"}
CALL = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}
TOOL = {"name": "bash", "description": "runs", "input_schema": {"type": "object"}}


def read(messages: list, **more: Any) -> Ask:
    body = {"model": "m", "max_tokens": 100, "messages": messages, **more}
    return MESSAGES.read(json.dumps(body).encode(), admin=False, max_samples=4, media_domains=("images.example",))


def sent(messages: list, *, longest: int = 4096, media: bool = True, pinned: dict | None = None, **more: Any) -> dict:
    ask = read(messages, **more)
    body = MESSAGES.engine_body(
        ask, served_model="policy", turn_id="msg_1", longest=longest, media=media, salt="s", pinned=pinned or {}
    )
    return json.loads(body)


def blocks(*content: dict, role: str = "user") -> list[dict]:
    return [{"role": role, "content": list(content)}]


def chain(messages: list, answer: dict | None = None, **more: Any) -> tuple[str, ...]:
    said = MESSAGES.said(answer) if answer else None
    return Conversation(b"secret", "owner", read(messages, **more).messages).close(said)[1]


def test_what_an_engine_takes_arrives_as_it_was_sent() -> None:
    history = [HELLO, {"role": "assistant", "content": [{"type": "text", "text": "so"}, CALL]}, *blocks(RESULT)]
    more = {"system": "be kind", "tools": [TOOL], "tool_choice": {"type": "auto"}, "top_k": 5, "stream": True}
    body = sent(history, **more)
    assert body == {"messages": history, "max_tokens": 100, "model": "policy", "cache_salt": "s", **more}
    assert read(history, **more).dropped == []


def test_what_no_engine_takes_becomes_text_and_is_named() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    ask = read([{"role": "user", "content": [pdf, search, {"type": "text", "text": "and?"}]}])
    assert ask.forward["messages"][0]["content"] == [
        {"type": "text", "text": "[document left out]"},
        {"type": "text", "text": "[server_tool_use left out]"},
        {"type": "text", "text": "and?"},
    ]
    assert ask.dropped == ["messages[0].content[0]", "messages[0].content[1]"]
    assert "JVBERi0=" in ask.recorded


def test_text_documents_and_search_results_are_read() -> None:
    document = {"type": "document", "title": "Notes", "source": {"type": "text", "data": "milk"}}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "body"}]}
    content = sent(blocks({**RESULT, "content": [document, found]}))["messages"][0]["content"][0]["content"]
    assert content == [{"type": "text", "text": "Notes\nmilk"}, {"type": "text", "text": "T\nS\nbody"}]


def test_a_result_within_a_result_is_left_out() -> None:
    """Names of what is left out grow with each level: a small body would make many megabytes of them."""
    ask = read(blocks({**RESULT, "content": [{**RESULT, "content": [RESULT]}]}))
    assert ask.dropped == ["messages[0].content[0].content[0]"]
    assert ask.forward["messages"][0]["content"][0]["content"] == [{"type": "text", "text": "[tool_result left out]"}]


@pytest.mark.parametrize("wrong", [None, "text", [1], 3])
def test_arguments_that_are_no_object_do_not_end_the_conversation(wrong: object) -> None:
    body = sent([HELLO, {"role": "assistant", "content": [{**CALL, "input": wrong}]}, *blocks(RESULT)])
    assert body["messages"][1]["content"][0]["input"] == {}


def test_tools_that_anthropic_runs_are_left_out_and_named_and_a_clients_own_stay() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, TOOL, {"type": "bash_20250124", "name": "sh"}]
    ask = read([HELLO], tools=tools, tool_choice={"type": "tool", "name": "web_search"})
    assert [tool["name"] for tool in ask.forward["tools"]] == ["bash", "sh"]
    assert ask.forward["tools"][1]["input_schema"] == {"type": "object"}
    assert "tool_choice" not in ask.forward
    assert ask.dropped == ["tools[0]", "tool_choice"]
    unnamed = {"type": "computer_toolset_20260801", "configs": {}}
    assert read([HELLO], tools=[unnamed, TOOL]).forward["tools"] == [TOOL]
    alone = read([HELLO], tools=tools[:1], context_management={"edits": []})
    assert "tools" not in alone.forward
    assert alone.dropped == ["context_management", "tools[0]"]


def test_thinking_leaves_room_for_an_answer_within_the_context() -> None:
    thinking = {"type": "enabled", "budget_tokens": 32_000}
    body = sent([HELLO], longest=2048, thinking=thinking, **{"max_tokens": 64_000})
    assert (body["max_tokens"], body["thinking"]["budget_tokens"]) == (2048, 2047)
    assert sent([HELLO], longest=512, thinking=thinking, max_tokens=64_000)["thinking"] == {"type": "adaptive"}
    assert "thinking" not in sent([HELLO], thinking={"type": "deep"})
    kept = sent([HELLO], output_config={"effort": "extreme", "format": {"type": "json_schema"}, "x": 1})
    assert kept["output_config"] == {"format": {"type": "json_schema"}}


def test_samples_are_not_asked_for_in_a_format_that_gives_one() -> None:
    ask = read([HELLO], n=3)
    assert (ask.samples, ask.dropped) == (1, ["n"])


def test_media_by_url_is_refused_unless_its_host_is_allowed() -> None:
    def image(url: str) -> dict:
        return {"type": "image", "source": {"type": "url", "url": url}}

    assert sent(blocks(image("https://images.example/a.png")))
    for content in (image("http://10.0.0.1/"), {**RESULT, "content": [image("https://elsewhere.example/")]}):
        with pytest.raises(BadRequest, match="host is allowed"):
            read(blocks(content))


def test_a_model_without_eyes_reads_that_there_was_an_image() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    history = blocks(image, {**RESULT, "content": [image]})
    assert sent(history)["messages"] == history
    first, second = sent(history, media=False)["messages"][0]["content"]
    assert first == second["content"][0] == {"type": "text", "text": "[image left out]"}


def test_a_person_is_known_by_user_id_without_the_session_and_stands_in_no_record() -> None:
    name = {"device_id": "d", "account_uuid": "a"}
    first = read([HELLO], metadata={"user_id": json.dumps({**name, "session_id": "s1"}), "kind": "x"})
    later = read([HELLO], metadata={"user_id": json.dumps({"session_id": "s2", **name})})
    assert first.user == later.user != read([HELLO]).user
    assert (first.session, later.session) == ("s1", "s2")
    assert json.loads(first.recorded)["metadata"] == {"kind": "x"}
    long = read([HELLO], metadata={"user_id": json.dumps({"session_id": "s1", "x": "y" * 5000})})
    assert long.session is None  # as others name a person: to look into it may cost much
    before = read([HELLO], metadata={"user_id": "user_1f_account_2e_session_3d"})
    assert (before.user, before.session) == ("user_1f_account_2e", "3d")


def test_a_turn_finds_its_parent_whatever_the_harness_reshapes() -> None:
    """Cache markers move, content flips between string and blocks, the billing line changes, reasoning is left out."""
    system = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be kind"}]
    answer = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "1"}, {"type": "text", "text": "so"}, CALL],
    }
    marked = [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {}}]}]
    first = chain(marked, answer, system=system)
    system[0]["text"] += "2"
    apart = [{"role": "assistant", "content": "so"}, *blocks(CALL, role="assistant")]
    for sent_back in (blocks({"type": "text", "text": "so"}, {**CALL, "id": "t9"}, role="assistant"), apart):
        second = chain([HELLO, *sent_back, *blocks({**RESULT, "cache_control": {}})], answer, system=system)
        assert first[-1] in second[:-2]
    other = chain([HELLO, *blocks({**CALL, "input": {}}, role="assistant"), *blocks(RESULT)], system=system)
    assert first[-1] not in other


def events(*payloads: dict) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (p["type"].encode(), json.dumps(p).encode()) for p in payloads)


def test_a_streamed_answer_is_the_same_as_a_plain_one() -> None:
    streamed = events(
        {"type": "message_start", "message": {"id": "chatcmpl-1", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "1"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "s"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "o"}},
        {"type": "content_block_start", "index": 2, "content_block": {**CALL, "input": {}}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"'}},
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": 'command":"ls"}'},
        },
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {}},
    )
    whole = [{"type": "thinking", "thinking": "hm", "signature": "1"}, {"type": "text", "text": "so"}, CALL]
    plain = MESSAGES.replies(json.dumps({"content": whole, "stop_reason": "tool_use"}).encode())
    assert MESSAGES.stream_replies(streamed) == plain
    assert plain[0].finish == "tool_calls"
    cut = MESSAGES.stream_replies(streamed[: streamed.index(b"event: message_delta")])
    assert cut[0].finish is None


def test_an_answer_sent_back_as_very_many_messages_is_read_at_once() -> None:
    """A step that copies what came before at each message, block, field or event would take minutes here."""
    many = 300_000
    said = blocks({"type": "text", "text": "x"}, CALL, role="assistant")
    (heard,) = MESSAGES.heard({"messages": said * many}, ())
    assert (len(heard["content"]), len(heard["tool_calls"])) == (many, many)
    dropped: list[str] = []
    MESSAGES.repair({"messages": [HELLO], "output_config": {str(place): 0 for place in range(many)}}, dropped)
    assert len(dropped) == many
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "sixteen letters "}}
    streamed = events({"type": "content_block_start", "content_block": {"type": "text", "text": ""}})
    text = MESSAGES.stream_replies(streamed + events(delta) * many)[0].message["content"][0]["text"]
    assert len(text) == many * 16


def test_errors_have_anthropics_shape() -> None:
    error = json.loads(MESSAGES.error_body(Unauthorized("no")))
    assert error == {"type": "error", "error": {"type": "authentication_error", "message": "no"}}
    assert MESSAGES.error_event(RateLimited("no")).startswith(b'event: error\ndata: {"type":"error"')
    openais = {"error": {"message": "This model's maximum context length is 8.", "type": "BadRequestError"}}
    refused = json.loads(MESSAGES.engine_error(400, json.dumps(openais).encode()))["error"]
    assert refused["type"] == "invalid_request_error"
    assert refused["message"].startswith("prompt is too long: This model's")
    assert json.loads(MESSAGES.engine_error(400, b"<html>"))["error"]["message"] == "The engine refused the request."
