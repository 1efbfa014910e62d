"""A stand-in engine that costs next to nothing: vLLM's HTTP interface with the tap, from bytes made beforehand.

`python -m benchmarks.engine PORT`. One thread, one epoll, no parser: it looks for the end of a request, for the tap's
header and for `"stream": true`, and sends one of four answers of `TOKENS` tokens. A stream goes out as an engine sends
it, one write for each token, and without a pause between them.
"""

import json
import select
import socket
import sys
from base64 import b64encode

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, STREAM_EVENT, TapCall, TapRecord, TapSample, encode_tap
from ingest.contracts.turn import Span

MODEL = "policy"
TOKENS = 64
_PROMPT_TOKENS = 128
_TEXTS = [f"word{token} " for token in range(TOKENS)]
LAST = _TEXTS[-1]
"""How every answer's text ends."""
_TAP = REQUEST_HEADER.encode()
_ID = b"0123456789abcdef0123456789abcdef"


def main() -> None:
    """Serves until it is ended."""
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
    poll = select.epoll()
    poll.register(listening, select.EPOLLIN)
    connections: dict[int, _Connection] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listening.fileno():
                connection = _Connection(listening.accept()[0])
                connections[connection.socket.fileno()] = connection
                poll.register(connection.socket, select.EPOLLIN)
            elif not connections[fd].readable():
                poll.unregister(fd)
                connections.pop(fd).socket.close()


class _Connection:
    """One kept-alive connection: one request after the other."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = accepted
        self._received = b""

    def readable(self) -> bool:
        """Reads what is there, and answers when it is a whole request. False where the peer is gone."""
        try:
            data = self.socket.recv(1 << 20)
            if not data:
                return False
            self._received += data
            head, end, body = self._received.partition(b"\r\n\r\n")
            if end:
                head = head.lower()
                if len(body) >= int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or 0):
                    self._received = b""
                    for part in answer(head, body):
                        self.socket.sendall(part)
        except ConnectionError:
            return False
        return True


def answer(head: bytes, body: bytes) -> list[bytes]:
    """What to send, write by write. `head` is in lower case."""
    if not head.startswith(b"post /v1/chat/completions"):
        return [_MODELS]
    stream = b'"stream":true' in body or b'"stream": true' in body
    if _TAP not in head:
        return _STREAM if stream else _WHOLE
    record = _RECORD.replace(_ID, head.partition(b"\r\nx-request-id: ")[2][: len(_ID)])  # a gateway takes its own only
    if stream:
        return [*_STREAM_TAPPED[:-1], _STREAM_TAPPED[-1].replace(b64encode(_RECORD), b64encode(record))]
    return [_WHOLE_TAPPED[0].replace(_RECORD, record)]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _response(body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def _whole(record: bytes) -> list[bytes]:
    message: dict = {"role": "assistant", "content": "".join(_TEXTS), "refusal": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": _PROMPT_TOKENS, "total_tokens": _PROMPT_TOKENS + TOKENS, "completion_tokens": TOKENS}
    body = _json({**_named("chat.completion"), "choices": [choice], "usage": usage})
    return [_response(body + record, f"{LENGTH_HEADER}: {len(record)}\r\n" if record else "")]


def _stream(record: bytes) -> list[bytes]:
    deltas: list[dict] = [{"role": "assistant", "content": ""}, *({"content": text} for text in _TEXTS)]
    parts = []
    for place, delta in enumerate(deltas):
        finish = "stop" if place == TOKENS else None
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        parts.append(_chunk(b"data: " + _json({**_named("chat.completion.chunk"), "choices": [choice]}) + b"\n\n"))
    end = b"data: [DONE]\n\n"
    if record:
        end += b"event: " + STREAM_EVENT.encode() + b"\ndata: " + b64encode(record) + b"\n\n"
    parts.append(_chunk(end) + b"0\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head + parts[0], *parts[1:]]


def _named(kind: str) -> dict:
    return {"id": f"chatcmpl-{_ID.decode()}", "object": kind, "created": 1, "model": MODEL}


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _record() -> bytes:
    sample = TapSample(
        index=0,
        output_ids=pack_ids(range(1000, 1000 + TOKENS)),
        logprobs=pack_logprobs([-0.5] * TOKENS),
        weight_versions=(Span("base", 0, TOKENS),),
        finish="stop",
    )
    call = TapCall(
        request_id=f"chatcmpl-{_ID.decode()}",
        prompt_ids=pack_ids(range(_PROMPT_TOKENS)),
        samples=(sample,),
        sampling={"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": TOKENS},
    )
    return encode_tap(TapRecord(engine_build="stand-in", calls=(call,)))


_MODELS = _response(_json({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]}))
_RECORD = _record()
_WHOLE, _WHOLE_TAPPED = _whole(b""), _whole(_RECORD)
_STREAM, _STREAM_TAPPED = _stream(b""), _stream(_RECORD)

if __name__ == "__main__":
    main()
