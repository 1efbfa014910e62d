"""A wire format: what the gateway must know of it, and nothing that the engine knows already.

A dialect reads a request into an `Ask` (which policy, how many samples, whose conversation, what to send on),
reads an answer into `Reply`s (the text that is recorded, what the session chain needs, each sample's finish),
and shapes errors. Fields come in three sorts: those that are sent on, those of the format that change
nothing here (recorded, not sent on), and engine-internal ones, which need the role admin. Others are
dropped and named to the caller, as is every part that a dialect had to leave out or to put in other words before an
engine would take the request (`repair`): a request that a harness sends is never refused for its form.

The conversation, for the session chain, is the same in all formats: messages with `role`, `content` and `tool_calls`
as chat has them. `heard` and `said` bring a format's own into that shape.

Invariant: what an `Ask` holds is well-typed wherever the gateway looks at it again.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from serving.gateway.dialects.values import check_values, refuse_unread
from serving.gateway.errors import TOO_LONG, BadRequest, EngineRefused, Forbidden, GatewayError

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
NOT_RECORDED = ("user", "safety_identifier", "prompt_cache_key", "user_profile_id", "client_metadata")
"""Fields that name a person or an installation: known to the log by keyed hash only, if at all."""

_WHOLE = frozenset({"max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "n"})
_TOO_LONG = ("maximum context length", "longer than the maximum model length")
"""vLLM's words for a prompt that does not fit."""
_STACK_PART = 4
"""A repair takes about two frames for each level that reading takes one for."""
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
    session: str | None = None
    """The caller's own name for its session, where the body has one."""
    messages: list[dict]
    """The conversation, for the session chain."""
    forward: dict
    recorded: str
    """The caller's body as it is kept: compact JSON, without the fields that name a person."""
    dropped: list[str] = []
    """Names of what the engine does not get."""
    plain: bool = False
    """As `Dialect.plain` has it: media need not be looked for."""


class Reply(msgspec.Struct):
    """One sample as the caller sees it, in its own format, and its finish reason in chat's words.

    `finish` is None while its end was not seen.
    """

    message: dict
    finish: str | None


class Dialect(ABC):
    """One wire format. Instances are stateless."""

    name: str
    """As in `Turn.dialect` and `new_turn_id`."""
    path: str
    id_prefix: str
    engine_prefix: str
    """What the engine's answers begin their ids with, before the request's id."""
    terminal: tuple[bytes, ...] = (b"data: [DONE]",)
    """How the stream's last event begins, one way or another."""
    limits: tuple[str, ...] = ("max_tokens",)
    """Fields that bound the output, clamped to the engine's context. A policy's pinned `max_tokens` goes to the
    first."""
    request_id_header = b"x-request-id"
    """Where this format's clients look for the request's id."""
    sent: frozenset[str]
    """Fields that go to the engine as they are."""
    accepted: frozenset[str]
    """Fields of the format that change nothing here."""

    def read(self, raw: bytes, *, admin: bool, max_samples: int, media_domains: Collection[str] = ()) -> Ask:
        """The request in `raw`. Raises `BadRequest` or `Forbidden`, naming the field, or `TooLarge`."""
        body = parse_object(raw)
        check_values(raw, body)
        forward, dropped = self._sort_fields(body, admin)
        self.refuse(body)
        model = expect(body, "model", str, "")
        stream = bool(expect(body, "stream", bool, False))
        if expect(body, "use_beam_search", bool, False):
            raise BadRequest("A beam search samples no turn that could be recorded.", param="use_beam_search")
        prompts = self.prompts(body)
        samples = prompts * (expect(body, "n", int, 1) if "n" in self.sent else 1)
        if samples < 1 or samples > max_samples:
            raise BadRequest(f"`n` (times prompts) must be between 1 and {max_samples}.", param="n")
        for name in self.limits:
            if expect(body, name, int, 1) < 0:
                raise BadRequest(f"`{name}` must not be negative.", param=name)
        user, session = self.person(body)
        messages = self.heard(body, media_domains)
        for name in NOT_RECORDED:
            body.pop(name, None)
        recorded = encode_text(body)
        plain = self.plain(messages)
        if not plain:
            if not admin:
                self.keep_from_engine(forward, dropped)
            self.repair(forward, dropped)
        return Ask(
            model=model,
            stream=stream,
            prompts=prompts,
            samples=samples,
            user=user,
            session=session,
            messages=messages,
            forward=forward,
            recorded=recorded,
            dropped=dropped,
            plain=plain,
        )

    def _sort_fields(self, body: dict, admin: bool) -> tuple[dict, list[str]]:
        forward: dict = {}
        dropped: list[str] = []
        for name, value in body.items():
            if name in self.sent:
                forward[name] = value
            elif name in INTERNAL:
                if not admin:
                    raise Forbidden(f"`{name}` steers the engine itself and needs a key with the role admin.")
                forward[name] = value
            elif name not in self.accepted and name not in MINTED:
                dropped.append(name)
        return forward, dropped

    def engine_body(
        self,
        ask: Ask,
        *,
        served_model: str,
        turn_id: str,
        longest: int,
        media: bool,
        salt: str,
        pinned: dict[str, float],
    ) -> bytes:
        """The bytes for the engine: the served name, limits within its context, the policy's pinned sampling, and
        media only where its model takes any.

        What a format has no field for cannot be pinned there; the turn records what was used.
        """
        body = ask.forward
        if "max_tokens" in pinned:
            for name in self.limits:
                body.pop(name, None)
        for name, value in pinned.items():
            field = self.limits[0] if name == "max_tokens" else name
            if field in self.sent:
                body[field] = int(value) if name in _WHOLE else value
        for name in self.limits:
            asked = body.get(name)
            if asked is not None and longest and asked > longest:
                body[name] = longest
        body["model"] = served_model
        body.setdefault("cache_salt", salt)
        self.seal(body, turn_id)
        if not media and not ask.plain:
            self.leave_out_media(body, ask.dropped)
        return _encode(body)

    def seal(self, body: dict, turn_id: str) -> None:  # noqa: B027 most formats need none
        """Last touches: the turn's id, where the format takes it in the body and not from `X-Request-Id`."""

    def refuse(self, body: dict) -> None:  # noqa: B027 most formats need none
        """Raises `BadRequest` for what this format offers and everloop does not."""

    def person(self, body: dict) -> tuple[str | None, str | None]:
        """The end user and the session that the body names."""
        return expect(body, "user", str, None), None

    def plain(self, messages: list[dict]) -> bool:
        """Whether `keep_from_engine`, `repair` and `leave_out_media` would change nothing of a request with these.

        They are not called then, for each walks the whole conversation.
        """
        return False

    def keep_from_engine(self, forward: dict, dropped: list[str]) -> None:  # noqa: B027 most formats need none
        """Raises `Forbidden` for parts that steer the engine itself; `dropped` gets the names of their fields that do.

        Works on copies, as `repair` does.
        """

    def repair(self, forward: dict, dropped: list[str]) -> None:  # noqa: B027 most formats need none
        """Brings what the engine would refuse for its form into one that it takes; `dropped` gets what is lost by it.

        Works on copies of what it changes: the record keeps what was sent.
        """

    def leave_out_media(self, body: dict, dropped: list[str]) -> None:  # noqa: B027 completions have none
        """Puts a line of text in the place of each image or other medium; `dropped` gets its name."""

    def said(self, message: dict) -> dict:
        """A reply's message as the conversation has it when it is sent back."""
        return message

    def engine_error(self, status: int, body: bytes) -> bytes:
        """An engine's error answer in this format; what it says of the request is the caller's to know."""
        message, param = _read_error(body)
        long = any(words in message for words in _TOO_LONG)
        return self.error_body(EngineRefused(status, message, param, TOO_LONG if long else "invalid_request"))

    def error_body(self, error: GatewayError, message: str = "") -> bytes:
        """OpenAI's error object; formats with another override it. A `message` takes the place of the error's own."""
        said = message or error.message
        return _encode({"error": {"message": said, "type": error.kind, "param": error.param, "code": error.code}})

    def error_event(self, error: GatewayError) -> bytes:
        """The error in mid-stream, as this format's clients raise it."""
        return b"data: " + self.error_body(error, error.in_stream) + b"\n\n"

    def model(self, name: str) -> dict:
        """A model as this format's clients list it; OpenAI's, where another is not said."""
        return {"id": name, "object": "model", "created": 0, "owned_by": "everloop"}

    def model_list(self, names: list[str]) -> dict:
        """All models."""
        return {"object": "list", "data": [self.model(name) for name in names]}

    @abstractmethod
    def prompts(self, body: dict) -> int:
        """How many prompts the request carries."""

    @abstractmethod
    def heard(self, body: dict, media_domains: Collection[str]) -> list[dict]:
        """The conversation as messages; raises `BadRequest` where it is none, or names media of unknown hosts."""

    @abstractmethod
    def replies(self, body: bytes) -> dict[int, Reply]:
        """The samples in a JSON answer, by index; raises `ValueError` where it is none."""

    @abstractmethod
    def stream_replies(self, events: bytes) -> dict[int, Reply]:
        """The samples in an event stream's bytes, by index; raises `ValueError` where there are none."""


@contextmanager
def bounded_stack() -> Iterator[None]:
    """Reading has a part of the stack only: what is read can be walked, repaired and written by the steps that follow.

    What is nested too deeply raises `RecursionError`. Does not nest.
    """
    whole = sys.getrecursionlimit()
    sys.setrecursionlimit(whole // _STACK_PART)
    try:
        yield
    finally:
        sys.setrecursionlimit(whole)


def decode_bounded(raw: bytes | str) -> Any:
    """What JSON holds that a caller sent. Raises `MsgspecError`, and `RecursionError` for what is nested too deeply."""
    with bounded_stack():
        return msgspec.json.decode(raw)


def parse_object(raw: bytes) -> dict:
    """The JSON object in `raw`; raises `BadRequest`, or `TooLarge` for one of very many values."""
    refuse_unread(raw)
    try:
        body = decode_bounded(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequest(f"The body is not valid JSON: {why}.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def encode_text(value: object) -> str:
    """Compact JSON of something that was JSON before."""
    return _encode(value).decode()


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


def _read_error(body: bytes) -> tuple[str, str | None]:
    """What an engine says is wrong, in OpenAI's shape or in Anthropic's, and with which field."""
    try:
        error = decode_bounded(body)["error"]
        message, param = error["message"], error.get("param")
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, AttributeError):
        return "The engine refused the request.", None
    return str(message), param if isinstance(param, str) else None


def word(value: object) -> str:
    """`value` where it is a string, else an empty one: for look-ups, which a list or an object would break."""
    return value if isinstance(value, str) else ""


def left_out(kind: object, as_type: str = "text") -> dict:
    """The block or part that stands for one that the engine does not take."""
    return {"type": as_type, "text": f"[{word(kind) or 'content'} left out]"}


def without(parts: object, kinds: Collection[str], where: str, dropped: list[str], as_type: str = "text") -> object:
    """A content with parts of these `kinds` left out, in results of tools, too; itself where it has none."""
    if not isinstance(parts, list):
        return parts
    kept = []
    for place, part in enumerate(parts):
        kind = ""
        if isinstance(part, dict):  # engines know a part without a type by its field
            kind = word(part.get("type")) or next((name for name in part if name in kinds), "")
        if kind in kinds:
            dropped.append(f"{where}[{place}]")
            part = left_out(kind, as_type)
        elif kind == "tool_result" and isinstance(part.get("content"), list):
            inner = f"{where}[{place}].content"
            part = {**part, "content": without(part["content"], kinds, inner, dropped, as_type)}
        kept.append(part)
    return kept
