"""An engine's stream, cut anywhere: what goes out, what is held back, what the tap said."""

import base64
import json
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.contracts.tap import TapCall, TapRecord, encode_tap
from serving.gateway.dialects import DIALECTS
from serving.gateway.stream import EventStream, decode_record
from serving.gateway.turns import replies_of

TERMINAL = b"data: [DONE]"
RECORD = TapRecord(engine_build="b", calls=(TapCall(request_id="r", prompt_ids=b"\1\0\0\0"),))
TAP = b"event: everloop\ndata: " + base64.b64encode(encode_tap(RECORD)) + b"\n\n"
TEXT = [
    b'data: {"choices":[{"index":0,"delta":{"content":"a [DONE] \\n\\ndata: [DONE] event: everloop"}}]}\n\n',
    b": a comment\n\n",
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
]
STREAM = b"".join(TEXT) + TERMINAL + b"\n\n" + TAP


def run(stream: bytes, cuts: list[int]) -> tuple[EventStream, bytes]:
    events, out, places = EventStream((TERMINAL,)), b"", [0, *sorted(set(cuts)), len(stream)]
    for start, end in pairwise(places):
        out += events.feed(stream[start:end])
    return events, out


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_wherever_it_is_cut_the_caller_gets_the_same(cuts: list[int]) -> None:
    events, out = run(STREAM, cuts)
    assert out == events.forwarded == b"".join(TEXT)
    assert events.held == TERMINAL + b"\n\n"
    assert events.ended
    assert events.record == RECORD


def test_byte_by_byte() -> None:
    events, out = run(STREAM, list(range(len(STREAM))))
    assert out == b"".join(TEXT)
    assert events.record == RECORD


def test_parts_of_a_large_event_are_kept_as_they_came_until_it_is_whole() -> None:
    """To join them as each came took a minute of the one event loop for a record of 64 MB."""
    events = EventStream((TERMINAL,))
    parts = [bytes([letter]) * 1000 for letter in b"abc"]
    counts = [sys.getrefcount(part) for part in parts]
    assert [events.feed(part) for part in parts] == [b"", b"", b""]
    assert [sys.getrefcount(part) for part in parts] == [count + 1 for count in counts]
    assert events.feed(b"\n") == b""
    assert events.feed(b"\n") == b"".join(parts) + b"\n\n"


@pytest.mark.parametrize(
    "last",
    [
        b"data:[DONE]\n\n",
        b": ping\ndata: [DONE]\n\n",
        b"id: 4\ndata: [DONE]\n\n",
        b"\ndata: [DONE]\n\n",
        b"\n\nevent: end\ndata:[DONE]\nid: 4\n\n\n",
    ],
)
@pytest.mark.parametrize(
    "tap",
    [
        TAP,
        b"\n" + TAP,
        b": ping\n" + TAP,
        TAP.replace(b": ", b":"),
        b"data: " + TAP[22:40] + b"\ndata:" + TAP[40:-2] + b"\nid: 5\nevent: everloop\n\n",
    ],
)
def test_the_last_event_and_the_taps_are_known_wherever_their_line_stands(last: bytes, tap: bytes) -> None:
    stream = b"".join(TEXT) + last + tap
    for cuts in ([], range(len(stream)), [len(stream) - len(tap)], [len(b"".join(TEXT)) + 1]):
        events, out = run(stream, list(cuts))
        assert out.strip(b"\n") == b"".join(TEXT).strip(b"\n")
        assert events.ended
        assert (out + events.held).strip(b"\n") == (b"".join(TEXT) + last).strip(b"\n")
        assert events.record == RECORD


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_names_of_last_events_in_a_text_are_text(path: str) -> None:
    terminal = DIALECTS[path].terminal
    words = b" ".join(terminal)
    text = b'event: delta\ndata: {"text":"' + words + b" " + TAP.replace(b"\n", b"\\n") + b'"}\n\n'
    for last in terminal:
        events = EventStream(terminal)
        assert events.feed(text + b"id: 1\n" + last + b"\ndata: {}\n\n" + TAP) == text
        assert events.held == b"id: 1\n" + last + b"\ndata: {}\n\n"
        assert events.record == RECORD


def test_a_stream_that_breaks_off_is_not_ended_and_has_no_record() -> None:
    events, out = run(b"".join(TEXT) + b"data: {", [])
    assert out == b"".join(TEXT)
    assert not events.ended
    assert events.record is None
    assert events.held == b""


@pytest.mark.parametrize("data", [None, b"", b"\xff\xff", encode_tap(RECORD)[:5]])
def test_a_damaged_record_is_none(data: bytes | None) -> None:
    assert decode_record(data) is None
    assert decode_record(b"%%%", encoded=True) is None


def chunk(**choice) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def test_the_dialects_read_replies_out_of_streams() -> None:
    chat, completions = DIALECTS["/v1/chat/completions"], DIALECTS["/v1/completions"]
    reply = chat.stream_replies(b"".join(TEXT))[0]
    assert reply.message["content"].endswith("event: everloopb")
    assert reply.finish == "stop"
    start = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}
    end = {"index": 0, "function": {"arguments": "}"}}
    called = chunk(delta={"tool_calls": [start]}) + chunk(delta={"tool_calls": [end]}, finish_reason="tool_calls")
    reply = chat.stream_replies(called + b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n')[0]
    assert reply.finish == "tool_calls"
    assert reply.message["tool_calls"] == [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    text = chunk(text="a") + chunk(text="b", finish_reason="length")
    assert completions.stream_replies(text)[0].message["content"] == "ab"
    assert completions.stream_replies(b"") == {}


@pytest.mark.parametrize(
    "odd", [b"[1,2]", b"<html>", b'"text"', b'{"choices":{},"delta":[]}', b'{"choices":[', b"\xff"]
)
@pytest.mark.parametrize("path", DIALECTS)
def test_a_stream_with_what_is_none_of_its_events_has_no_replies(path: str, odd: bytes) -> None:
    """Nothing of it is left out in silence: what is recorded would not be what the tokens say."""
    replies = {
        "/v1/chat/completions": chunk(delta={"content": "a"}),
        "/v1/completions": chunk(text="a"),
        "/v1/messages": b'data: {"type":"content_block_start","content_block":{"type":"text","text":"a"}}\n\n',
        "/v1/responses": b'data: {"type":"response.output_item.added","item":{"id":"m","type":"message"}}\n\n',
    }
    parse, good = DIALECTS[path].stream_replies, replies[path]
    assert set(replies_of(parse, good)) == {0}
    assert set(replies_of(parse, b": ping\n\nevent: x\ndata:\n\n" + good.replace(b": {", b":{", 1))) == {0}
    assert replies_of(parse, good + b"data: " + odd + b"\n\n" + good) == {}
    assert replies_of(DIALECTS[path].replies, odd) == {}
