"""What a dialect reads in an engine's answer, streamed or not, and how its errors look."""

import json
import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.gateway.dialects import DIALECTS
from serving.gateway.errors import BadRequest, CaptureFailed, EngineLost
from serving.gateway.sessions import Conversation
from serving.gateway.turns import replies_of
from tests.odd_json import KEYS, NESTED

CHAT = DIALECTS["/v1/chat/completions"]


def test_an_answers_reasoning_is_recorded_with_it() -> None:
    said = {"role": "assistant", "content": "4", "reasoning": "2 and 2"}
    whole = json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}).encode()
    pieces = [{"reasoning": "2 "}, {"reasoning": "and 2"}, {"content": "4"}]
    events = [{"choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    assert CHAT.replies(whole)[0].message == CHAT.stream_replies(stream)[0].message == said


PIECES = st.lists(
    st.tuples(st.integers(0, 1), st.text('ab"\\\n\u00e9{}:,', max_size=4) | st.text(max_size=8)), max_size=12
)


ALIKE = [(0, "a"), (0, "b"), (0, "c"), (0, "d")]


@settings(max_examples=500)
@given(PIECES, st.booleans())
@example(ALIKE, True)
@example([*ALIKE, (1, "e"), (0, "f")], True)
def test_streamed_text_is_read_whole_however_alike_its_events_are(pieces: list[tuple[int, str]], plain: bool) -> None:
    events = b"".join(
        b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":"), ensure_ascii=plain).encode()
        for index, text in pieces
        for chunk in [{"id": "c", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}]
    )
    said = {index: reply.message["content"] for index, reply in CHAT.stream_replies(events).items()}
    assert said == {at: "".join(text for index, text in pieces if index == at) for at in {i for i, _ in pieces}}


@pytest.mark.parametrize(
    "other",
    [
        b'{"content":"c","reasoning":"r"}',
        b'{"content":"c","tool_calls":[]}',
        b'{"reasoning":"r"}',
        b'{"content":"c\\\\"}',
        b'{"content":"\\""}',
    ],
)
@pytest.mark.parametrize("place", range(6))
def test_an_event_of_another_form_among_like_ones_keeps_its_own(other: bytes, place: int) -> None:
    deltas = [b'{"content":"%d"}' % n for n in range(5)]
    deltas.insert(place, other)
    alone, events = json.loads(other), b""
    for delta in deltas:
        events += b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % delta
    said = CHAT.stream_replies(events)[0].message
    text = [str(n) for n in range(5)]
    text.insert(place, alone.get("content", ""))
    assert said.get("content") == "".join(text)
    assert said.get("reasoning") == alone.get("reasoning")


def test_a_tool_call_that_comes_in_very_many_pieces_is_read_at_once() -> None:
    """A step that copies what came before at each piece would take minutes here."""
    piece, many = {"index": 0, "function": {"arguments": "sixteen letters "}}, 300_000
    event = b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}).encode()
    call = CHAT.stream_replies(event * many)[0].message["tool_calls"][0]
    assert len(call["function"]["arguments"]) == many * 16


def recorded(dialect, parse, body: bytes) -> list[dict]:
    """The messages of an answer as a turn records them, each named by the chain as well."""
    messages = [reply.message for reply in replies_of(parse, body).values()]
    for message in messages:
        assert msgspec.json.encode(message)
        Conversation(b"secret", "owner", []).close(dialect.said(message))
    return messages


OF_ENGINES = (*KEYS, "index", "id", "item", "item_id", "content_block", "tool_calls", "function", "reasoning")
ANSWERED = st.dictionaries(st.sampled_from(OF_ENGINES), NESTED, max_size=5)
CALLED = st.dictionaries(st.sampled_from(("index", "id", "function")), NESTED | ANSWERED, max_size=3)
SAID = st.fixed_dictionaries({}, optional={"content": st.text(max_size=3), "tool_calls": st.lists(CALLED, max_size=3)})
CHOICE = st.fixed_dictionaries({}, optional={"index": st.integers(0, 1), "delta": SAID, "message": SAID})
BLOCK = st.sampled_from(("text", "thinking", "tool_use", "tool_result", "x")).flatmap(
    lambda kind: st.fixed_dictionaries({"type": st.just(kind)}, optional={"text": NESTED, "content": NESTED})
)
DELTA = st.fixed_dictionaries({"type": st.just("text_delta"), "text": st.text(max_size=3)})
PAYLOAD = st.one_of(
    st.dictionaries(st.sampled_from((*OF_ENGINES, "delta")), NESTED),
    st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=3)}),
    st.fixed_dictionaries({"type": st.just("content_block_start"), "content_block": BLOCK | ANSWERED}),
    st.fixed_dictionaries({"type": st.just("content_block_delta"), "delta": DELTA}),
    st.fixed_dictionaries({"type": st.sampled_from(("response.output_item.added", "x")), "item": BLOCK | ANSWERED}),
    st.fixed_dictionaries({"type": st.just("response.output_item.done"), "item": BLOCK | ANSWERED}),
    st.fixed_dictionaries(
        {"type": st.just("response.output_text.delta"), "item_id": st.just("None"), "delta": st.text(max_size=3)}
    ),
    st.fixed_dictionaries({"content": st.lists(BLOCK | ANSWERED, max_size=3)}),
    st.fixed_dictionaries({"output": st.lists(BLOCK | ANSWERED, max_size=3)}),
)


@settings(max_examples=150)
@given(st.lists(PAYLOAD, min_size=1, max_size=5))
@pytest.mark.parametrize("dialect", list(DIALECTS.values()), ids=lambda dialect: dialect.name)
def test_whatever_an_engine_answers_it_is_recorded_or_unreadable(dialect, payloads: list[dict]) -> None:
    events = b"".join(b"event: x\ndata: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)
    recorded(dialect, dialect.stream_replies, events)
    recorded(dialect, dialect.replies, json.dumps(payloads[0]).encode())


def test_an_object_where_a_calls_arguments_should_be_a_text_is_recorded() -> None:
    function = {"name": "f", "arguments": {"a": 1}}
    chunk = {"choices": [{"index": 0, "delta": {"content": "x", "tool_calls": [{"index": 0, "function": function}]}}]}
    (message,) = recorded(CHAT, CHAT.stream_replies, b"data: " + json.dumps(chunk).encode() + b"\n\n")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    whole = {"choices": [{"message": {"content": "x", "tool_calls": [{"function": function}]}}]}
    (message,) = recorded(CHAT, CHAT.replies, json.dumps(whole).encode())
    assert message["tool_calls"][0]["function"] == function


def test_a_function_that_is_a_text_is_unreadable_in_a_stream_and_recorded_as_it_is_in_a_body() -> None:
    said = {"content": "x", "tool_calls": [{"index": 0, "function": "f"}]}
    chunk = json.dumps({"choices": [{"index": 0, "delta": said}]}).encode()
    assert recorded(CHAT, CHAT.stream_replies, b"data: " + chunk + b"\n\n") == []
    whole = json.dumps({"choices": [{"message": said}]}).encode()
    assert recorded(CHAT, CHAT.replies, whole) == [{"role": "assistant", **said}]


DEEP_ANSWERS = {
    "/v1/chat/completions": '{"choices":[{"%s":{"content":"x","tool_calls":[{"function":{"arguments":%%s}}]}}]}',
    "/v1/responses": '{"item":{"id":"1","more":%s},"output":[{"more":%s}]}',
    "/v1/messages": '{"content_block":{"more":%s},"content":[{"type":"x","more":%s}]}',
}


@pytest.mark.parametrize("path", DEEP_ANSWERS)
def test_however_deep_an_answer_is_nested_it_is_recorded_or_unreadable(path: str) -> None:
    dialect, form, readable = DIALECTS[path], DEEP_ANSWERS[path], 0
    for depth in (*range(1, 1000, 7), 3000):
        deep = "[" * depth + "]" * depth
        answer, delta = ((form % name if "%%" in form else form).replace("%s", deep) for name in ("message", "delta"))
        readable += bool(recorded(dialect, dialect.replies, answer.encode()))
        readable += bool(recorded(dialect, dialect.stream_replies, b"data: %b\n\n" % delta.encode()))
        assert b'"error"' in dialect.engine_error(400, b'{"error":{"message":%b}}' % deep.encode())
    assert readable > 10


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_an_error_in_mid_answer_says_in_words_that_trying_again_may_help(path: str) -> None:
    """Pi sees the message alone, and tries again on these words. Responses say it in a code."""
    event = DIALECTS[path].error_event
    for error in (EngineLost("The engine went away."), CaptureFailed("It was not recorded.")):
        assert re.search(rb'"message":"[^"]*(?i:server error|overloaded|service unavailable)', event(error))
    assert b'"message":"no"' in event(BadRequest("no"))


def test_errors_have_openais_shape() -> None:
    error = json.loads(CHAT.error_body(BadRequest("no", param="n")))
    assert error == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}
    }
    assert CHAT.error_event(BadRequest("no")).startswith(b'data: {"error"')
    assert msgspec.json.decode(CHAT.error_event(BadRequest("no"))[6:])
