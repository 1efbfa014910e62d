"""A wire format: what the gateway must know of it, and nothing that the engine knows already.

A dialect reads a request into an `Ask` (which policy, how many samples, whose conversation, what to send on),
reads an answer into `Reply`s (the text that is recorded, what the session chain needs, each sample's finish),
and shapes errors. Fields come in three sorts: those that are sent on, those of the format that change
nothing here (recorded, not sent on), and engine-internal ones, which need the role admin. Others are
dropped and counted.

Invariant: what an `Ask` holds is well-typed wherever the gateway looks at it again.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TypeVar

import msgspec

from serving.gateway.errors import BadRequest, Forbidden, GatewayError

SAMPLING = frozenset(
    {
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "bad_words"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "ignore_eos"),
        *("stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
        *("spaces_between_special_tokens", "max_tokens", "n", "echo"),
        *("response_format", "structured_outputs"),
    }
)
INTERNAL = frozenset(
    {
        *("priority", "kv_transfer_params", "ec_transfer_params", "cache_salt", "vllm_xargs"),
        *("chat_template", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds"),
        *("allowed_token_ids", "prompt_logprobs", "logprob_token_ids", "truncate_prompt_tokens", "truncation_side"),
        *("return_token_ids", "return_tokens_as_token_ids", "return_token_offsets", "return_prompt_text"),
        *("routed_experts_prompt_start", "mm_payload", "return_mm_kwargs", "repetition_detection", "watermarking"),
        *("add_special_tokens", "data_parallel_rank"),
    }
)
MINTED = frozenset({"request_id", "session_id"})
"""Identities that the gateway mints: a caller's own are dropped, whatever its role."""
NOT_RECORDED = ("user", "safety_identifier", "prompt_cache_key")
"""Fields that name a person: known to the log by keyed hash only."""

_WHOLE = frozenset({"max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "n"})
_encode = msgspec.json.encode
T = TypeVar("T")
D = TypeVar("D")


class Ask(msgspec.Struct, kw_only=True):
    """What a caller asks for. `forward` is the body for the engine, still without its model and limits."""

    model: str
    stream: bool
    prompts: int
    samples: int
    """Of all prompts together."""
    user: str | None
    messages: list[dict]
    forward: dict
    recorded: str
    """The caller's body as it is kept: compact JSON, without the fields that name a person."""
    dropped: int = 0
    """How many unknown fields were left out."""


class Reply(msgspec.Struct):
    """One sample as the caller sees it: its message for the session chain, and its finish reason."""

    message: dict
    finish: str | None


class Dialect(ABC):
    """One wire format. Instances are stateless."""

    name: str
    """As in `Turn.dialect` and `new_turn_id`."""
    path: str
    id_prefix: str
    terminal = b"data: [DONE]"
    """How the stream's last event begins."""
    limits: tuple[str, ...] = ("max_tokens",)
    """Fields that bound the output, clamped to the engine's context."""
    sent: frozenset[str]
    """Fields that go to the engine as they are."""
    accepted: frozenset[str]
    """Fields of the format that change nothing here."""

    def read(self, raw: bytes, *, admin: bool, max_samples: int, media_domains: Collection[str] = ()) -> Ask:
        """The request in `raw`. Raises `BadRequest` or `Forbidden`, naming the field."""
        body = parse_object(raw)
        forward, dropped = self._sort_fields(body, admin)
        model = expect(body, "model", str, "")
        stream = bool(expect(body, "stream", bool, False))
        if expect(body, "use_beam_search", bool, False):
            raise BadRequest("A beam search samples no turn that could be recorded.", param="use_beam_search")
        prompts = self.prompts(body)
        samples = expect(body, "n", int, 1) * prompts
        if samples < 1 or samples > max_samples:
            raise BadRequest(f"`n` (times prompts) must be between 1 and {max_samples}.", param="n")
        for name in self.limits:
            if expect(body, name, int, 1) < 0:
                raise BadRequest(f"`{name}` must not be negative.", param=name)
        user = expect(body, "user", str, None)
        messages = self.messages(body, media_domains)
        for name in NOT_RECORDED:
            body.pop(name, None)
        return Ask(
            model=model,
            stream=stream,
            prompts=prompts,
            samples=samples,
            user=user,
            messages=messages,
            forward=forward,
            recorded=encode_text(body),
            dropped=dropped,
        )

    def _sort_fields(self, body: dict, admin: bool) -> tuple[dict, int]:
        forward, dropped = {}, 0
        for name, value in body.items():
            if name in self.sent:
                forward[name] = value
            elif name in INTERNAL:
                if not admin:
                    raise Forbidden(f"`{name}` steers the engine itself and needs a key with the role admin.")
                forward[name] = value
            elif name not in self.accepted and name not in MINTED:
                dropped += 1
        return forward, dropped

    def engine_body(self, ask: Ask, *, served_model: str, longest: int, salt: str, pinned: dict[str, float]) -> bytes:
        """The bytes for the engine: the served name, limits within its context, the policy's pinned sampling."""
        body = ask.forward
        if "max_tokens" in pinned:
            for name in self.limits:
                body.pop(name, None)
        for name, value in pinned.items():
            body[name] = int(value) if name in _WHOLE else value
        for name in self.limits:
            asked = body.get(name)
            if asked is not None and longest and asked > longest:
                body[name] = longest
        body["model"] = served_model
        body.setdefault("cache_salt", salt)
        return _encode(body)

    def error_body(self, error: GatewayError) -> bytes:
        """OpenAI's error object; formats with another override it."""
        return _encode(
            {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}
        )

    def error_event(self, error: GatewayError) -> bytes:
        """The error in mid-stream, as this format's clients raise it."""
        return b"data: " + self.error_body(error) + b"\n\n"

    @abstractmethod
    def prompts(self, body: dict) -> int:
        """How many prompts the request carries."""

    @abstractmethod
    def messages(self, body: dict, media_domains: Collection[str]) -> list[dict]:
        """The conversation as messages; raises `BadRequest` where it is none."""

    @abstractmethod
    def replies(self, body: bytes) -> dict[int, Reply]:
        """The samples in a JSON answer, by index; raises `ValueError` where it is none."""

    @abstractmethod
    def stream_replies(self, events: bytes) -> dict[int, Reply]:
        """The samples in an event stream's bytes, by index; raises `ValueError` where there are none."""


def parse_object(raw: bytes) -> dict:
    """The JSON object in `raw`; raises `BadRequest`."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequest(f"The body is not valid JSON: {why}.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def encode_text(value: object) -> str:
    """Compact JSON of something that was JSON before; raises `BadRequest`."""
    try:
        return _encode(value).decode()
    except RecursionError:
        raise BadRequest("The body is not valid JSON: it is nested too deeply.") from None


def expect(body: dict, name: str, kind: type[T], default: D) -> T | D:
    """`body[name]` if it is a `kind`, `default` where it is absent or null; raises `BadRequest` otherwise."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadRequest(f"`{name}` must be {_NAMES[kind]}.", param=name)
    return value


_NAMES: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    dict: "an object",
}


def events_as_array(events: bytes) -> bytes:
    """The JSON payloads of a `data:`-only event stream as one JSON array, for one call of a decoder."""
    return b"[" + events[len(b"data: ") :].rstrip(b"\n").replace(b"\n\ndata: ", b",") + b"]"


def decode_events(events: bytes, decoder: msgspec.json.Decoder) -> list:
    """Decodes each `data:` payload; `decoder` is for an array of them. Comments and error events are skipped."""
    if not events:
        return []
    try:
        return decoder.decode(events_as_array(events))
    except msgspec.DecodeError:
        payloads = [line[6:] for line in events.split(b"\n") if line.startswith(b"data: {")]
        return decoder.decode(b"[" + b",".join(payloads) + b"]")
