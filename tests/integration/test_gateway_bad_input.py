"""Bad input in every format: an error in the caller's own shape, never the server's fault, and the worker serves on."""

import contextlib
import json
import socket
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.integration.serving_stack import Stack, running, wait_until

pytestmark = pytest.mark.integration
TALK = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
TURNS = {
    "/v1/chat/completions": TALK,
    "/v1/completions": {"model": "policy", "prompt": "hi"},
    "/v1/responses": {"model": "policy", "input": "hi"},
    "/v1/messages": TALK,
}
SIGNAL = {"target": "turn", "id": "x", "kind": "accept"}
PATHS = {
    **TURNS,
    "/v1/messages/count_tokens": TALK,
    "/v1/feedback": SIGNAL,
    "/v1/feedback/batch": {"items": [SIGNAL]},
}
LIMIT = 5 << 20
SETTINGS = {"max_body_bytes": LIMIT, "body_seconds": 3.0, "default_policy": None, "max_in_flight_bytes": LIMIT}
HTTP = httpx.Client(timeout=60)
every_path = pytest.mark.parametrize("path", PATHS)
every_format = pytest.mark.parametrize("path", TURNS)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("bad_input"), settings=SETTINGS) as stack:
        stack.shared_key = stack.key()
        yield stack


@pytest.fixture(autouse=True)
def serves_on(stack: Stack) -> Iterator[None]:
    """After each test nothing is in progress, the process is the same, and it answers."""
    yield
    wait_until(lambda: stack.metrics()["everloop_turns_in_progress"] == 0, "the last turn's end")
    assert stack.processes["gateway"].poll() is None
    assert post(stack, "/v1/chat/completions", TALK).status_code == 200


def post(stack: Stack, path: str, body: object, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"authorization": f"Bearer {stack.shared_key}", "content-type": "application/json", **headers}
    return HTTP.post(stack.gateway_url + path, content=content, headers=sent)


def say(stack: Stack, head: bytes) -> bytes:
    """What the gateway answers to these bytes, up to the end of its answer's body."""
    with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
        s.sendall(head)
        s.settimeout(60)
        return whole(s)


def whole(s: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"}") and (more := s.recv(65536)):
        answer += more
    return answer


def head(stack: Stack, path: str, *lines: str) -> bytes:
    first = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {stack.shared_key}"]
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


def refused(path: str, status: int, body: bytes) -> dict:
    """The error in `body`, which has the shape of the path's clients."""
    told = json.loads(body)
    if path.startswith("/v1/messages"):
        assert set(told) == {"type", "error"}, told
        assert told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}, told
    else:
        assert set(told) == {"error"}, told
        assert set(told["error"]) == {"message", "type", "param", "code"}, told
    assert 400 <= status < 500, (status, told)
    return told["error"]


def refused_raw(path: str, answer: bytes, status: int) -> dict:
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"\r\nx-request-id: " in top
    assert (b"\r\nrequest-id: " in top) == path.startswith("/v1/messages")
    return refused(path, status, body)


@every_path
def test_what_is_no_request_of_this_format(stack: Stack, path: str) -> None:
    (name,) = [name for name in ("messages", "prompt", "input", "id", "items") if name in PATHS[path]]
    bodies: list[object] = [
        *(b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"\0", b"{}", b"NaN"),
        b"[" * 100_000,
        b'{"%b":' % name.encode() + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"policy","%b":"\xff"}' % name.encode(),
        b'{"model":"policy","%b":"\\ud800"}' % name.encode(),
        b'{"model":"policy","%b":1e400}' % name.encode(),
        b'{"model":"policy","%b":%b}' % (name.encode(), b"1" * 5000),
        json.dumps(PATHS[path]).encode("utf-16"),
        *({**PATHS[path], name: wrong} for wrong in (None, True, 7, {}, [], [[]], [None], {"a": []})),
    ]
    for body in bodies:
        answer = post(stack, path, body)
        refused(path, answer.status_code, answer.content)
        assert answer.headers["x-request-id"]


@every_format
def test_wrong_types_where_the_gateway_looks(stack: Stack, path: str) -> None:
    wrong: dict[str, object] = {"model": ["policy"], "stream": "yes", "priority": 1}
    wrong["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = -1
    if path in ("/v1/chat/completions", "/v1/completions"):
        wrong |= {"n": -3, "user": {}}
    for name, value in wrong.items():
        answer = post(stack, path, {**TURNS[path], name: value})
        assert name in refused(path, answer.status_code, answer.content)["message"], name


@every_format
def test_an_unknown_model_and_a_prompt_that_is_too_long(stack: Stack, path: str) -> None:
    answer = post(stack, path, {**TURNS[path], "model": "gpt-9"})
    assert answer.status_code == 404
    refused(path, 404, answer.content)
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    HTTP.post(f"{engine}/stand-in", json={"faults": ["too_long", "too_long"]}).raise_for_status()
    for stream in (False, True):
        answer = post(stack, path, {**TURNS[path], "stream": stream})
        assert answer.status_code == 400
        error = refused(path, 400, answer.content)
        if path == "/v1/messages":
            assert error["message"].startswith("prompt is too long")
        else:
            assert error["code"] == "context_length_exceeded"


@every_path
def test_a_body_that_is_too_large(stack: Stack, path: str) -> None:
    answer = post(stack, path, b"x" * (LIMIT + 1))
    assert answer.status_code == 413
    refused(path, 413, answer.content)
    answer = HTTP.post(
        stack.gateway_url + path,
        content=(b"x" * (1 << 20) for _ in range(8)),
        headers={"authorization": f"Bearer {stack.shared_key}"},
    )
    assert answer.status_code == 413
    refused(path, 413, answer.content)


def test_slow_clients(stack: Stack) -> None:
    """Some send no end of their head, some no end of their body; all at once, for each takes the whole time allowed."""
    with contextlib.ExitStack() as connections:
        waiting = []
        for path in PATHS:
            for sent in (head(stack, path, "Content-Length: 50") + b"{", f"POST {path} HTTP/1.1\r\nHost: ".encode()):
                s = connections.enter_context(socket.create_connection(("127.0.0.1", stack.gateway_port)))
                s.settimeout(60)
                s.sendall(sent)
                waiting.append((path, s))
        for path, s in waiting:
            refused_raw(path, whole(s), 408)


@every_path
def test_a_length_that_never_comes_holds_its_room_no_longer_than_a_body_may_take(stack: Stack, path: str) -> None:
    length = 4 << 20
    with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
        s.settimeout(60)
        s.sendall(head(stack, path, f"Content-Length: {length}") + b"{")
        refused_raw(path, whole(s), 408)
        answer = post(stack, path, b"x" * length)
        assert answer.status_code == 400
        refused(path, 400, answer.content)


@every_path
def test_a_client_that_vanishes_while_it_asks(stack: Stack, path: str) -> None:
    for sent in (head(stack, path, "Content-Length: 50") + b"{", b"POST ", b""):
        with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
            s.sendall(sent)


@every_format
def test_a_client_that_vanishes_in_mid_answer(stack: Stack, path: str) -> None:
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    for stream in (True, False):
        HTTP.post(f"{engine}/stand-in", json={"faults": ["hold"]}).raise_for_status()
        before = HTTP.get(f"{engine}/stand-in").json()
        body = json.dumps({**TURNS[path], "stream": stream}).encode()
        with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
            s.sendall(head(stack, path, f"Content-Length: {len(body)}") + body)
            if stream:
                assert s.recv(1)
            wait_until(partial(more, engine, before, "requests"), "the engine's part")
        wait_until(partial(more, engine, before, "aborted"), "the abort")


def more(engine: str, before: dict, what: str) -> bool:
    return len(HTTP.get(f"{engine}/stand-in").json()[what]) > len(before[what])


def test_silent_connections_end(stack: Stack) -> None:
    """One that says nothing, and one that never sends the rest of a body that was answered already."""
    with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
        s.settimeout(60)
        assert s.recv(1) == b""
    with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
        s.settimeout(60)
        s.sendall(b"POST /v1/feedback HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert b" 401 " in whole(s)
        s.sendall(b"}")
        assert s.recv(1) == b""


@every_path
def test_heads_that_can_be_read_in_two_ways_are_refused(stack: Stack, path: str) -> None:
    body = json.dumps(PATHS[path])
    length = f"Content-Length: {len(body)}"
    chunked = "Transfer-Encoding: chunked"
    for lines in (
        [length, f"Authorization: Bearer {stack.shared_key}"],
        [length, length],
        [length, "Content-Length: 2"],
        [f"{length}, {len(body)}"],
        [length, chunked],
        [chunked, length],
        [chunked, "Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding : chunked"],
        [length, "X-Folded: a\r\n b"],
        ["Content-Length: +2"],
        ["Content-Length: x"],
    ):
        answer = say(stack, head(stack, path, *lines) + body.encode())
        refused_raw(path, answer, 400)
        assert answer.count(b"HTTP/1.1 4") == 1, lines
    refused_raw(path, say(stack, head(stack, path, chunked) + b"zz\r\n"), 400)


@every_path
def test_a_head_without_end(stack: Stack, path: str) -> None:
    answer = b""
    with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
        s.settimeout(60)
        s.sendall(f"POST {path} HTTP/1.1\r\nX-Long: ".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                s.sendall(b"a" * (8 << 10))
        with contextlib.suppress(ConnectionError):
            answer = s.recv(65536)
    assert answer == b"" or refused_raw(path, answer, 431)


def test_what_is_no_http(stack: Stack) -> None:
    counted = 'everloop_refused_heads_total{code="invalid_request"}'
    before = stack.metrics().get(counted, 0.0)
    for start in (b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 50):
        refused_raw("/", say(stack, start), 400)
    refused_raw("/", say(stack, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"), 400)
    assert stack.metrics()[counted] == before + 5
    refused_raw("/", say(stack, b"GET /%ff%00 HTTP/1.1\r\nHost: x\r\nx-everloop-session: \xff\xfe\r\n\r\n"), 404)
    assert post(stack, "/v1/messages", TALK, **{"x-everloop-session": "s" * 5000}).status_code == 200


@every_format
def test_a_body_is_json_whatever_its_content_type_says(stack: Stack, path: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""):
        assert post(stack, path, TURNS[path], **{"content-type": kind}).status_code == 200
    answer = post(stack, path, b"\x1f\x8b\x08\0", **{"content-encoding": "gzip"})
    refused(path, answer.status_code, answer.content)


@every_format
def test_an_offer_to_speak_http_2_is_not_taken_and_costs_nothing(stack: Stack, path: str) -> None:
    body = json.dumps(TURNS[path]).encode()
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    asked = head(stack, path, *offer, f"Content-Length: {len(body)}") + body
    assert say(stack, asked).startswith(b"HTTP/1.1 200 OK\r\n")
