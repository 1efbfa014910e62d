"""From what the engine recorded and what the caller was sent to turns for the log: pure functions.

Invariant: every turn made here passes `Turn.check`; a record that does not keep its contract is stripped of
its arrays, and the turn says so.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.fleet import Engine, Key
from ingest.contracts.tap import TapCall, TapRecord, TapSample
from ingest.contracts.turn import Finish, Turn
from serving.gateway.dialects.base import Dialect, Reply
from serving.gateway.errors import TooLarge
from serving.gateway.sessions import Conversation
from serving.gateway.trainability import why_untrainable

_ENGINE_WORDS = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}
_FINISHED = frozenset({Finish.STOP, Finish.LENGTH, Finish.TOOL_CALLS})
_WORDS = ("content", "reasoning", "thinking", "text", "refusal", "output", "tool_calls", "function", "name")
"""Fields of answers, in one format or another, that hold what was said or called, or parts with such fields."""
_encode = msgspec.json.encode


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn's request says of it, before any engine was asked."""

    turn_id: str
    policy: str
    dialect: Dialect
    key: Key
    subject: str
    session: str | None
    """The hash of the caller's own name for its session; None: the conversation names itself."""
    conversation: Conversation
    prompts: int
    samples: int
    """Of all prompts together."""
    arm: str
    trains: bool
    """Whether the key and the request let the turn be learned from."""
    recorded: str
    started_at: float


class Ending(msgspec.Struct, kw_only=True):
    """How an engine's answer ended: `lost` in mid-answer, `too_large`, `left` by the caller, or with its `status`.

    `shown` are the samples whose end was sent to the caller before it left.
    """

    engine: Engine
    status: int = 200
    lost: bool = False
    too_large: TooLarge | None = None
    left: bool = False
    shown: Collection[int] = ()
    record: TapRecord | None = None
    replies: Mapping[int, Reply] = {}
    finished_at: float = 0.0


def own(record: TapRecord | None, caller: Caller) -> TapRecord | None:
    """The record, if it is this request's; None where there is none, or it is another's.

    An engine calls a request by its answer's id, which is of fixed length, and puts a number behind where it makes more
    than one call of it, or may.
    """
    answer_id = caller.dialect.engine_prefix + caller.turn_id.removeprefix(caller.dialect.id_prefix)
    mine = record is not None and all(call.request_id.startswith(answer_id) for call in record.calls)
    return record if mine else None


def turns_of(caller: Caller, ending: Ending) -> list[Turn]:
    """One turn for each sample that was asked for, whatever became of it."""
    recorded = dict(_samples(ending.record, caller))
    nothing: tuple[TapCall | None, TapSample | None] = (None, None)
    return [
        _turn(caller, ending, index, *(recorded.get(index) or nothing), ending.replies.get(index))
        for index in range(caller.samples)
    ]


def complete(turns: list[Turn]) -> bool:
    """Whether each turn carries what the engine recorded of it: a prompt, and the tokens of what it says.

    An answer that was cut may have none yet, and one that says nothing may have none at all.
    """
    return all(
        turn.prompt_ids and (turn.output_ids or turn.finish not in _FINISHED or not _says_something(turn.answer))
        for turn in turns
    )


def _says_something(answer: str) -> bool:
    """Whether there is any text or call in an answer; of one that could not be read it is assumed."""
    return not answer or _has_words(msgspec.json.decode(answer))


def _has_words(part: object) -> bool:
    if isinstance(part, dict):
        return any(_has_words(part.get(name)) for name in _WORDS)
    return any(map(_has_words, part)) if isinstance(part, list) else bool(part)


def _samples(record: TapRecord | None, caller: Caller) -> Iterator[tuple[int, tuple[TapCall, TapSample]]]:
    """Samples by the index that the caller sees: call i, for prompt i, holds the samples from i·n.

    None where the engine made more calls than there are prompts, or fewer: which sample is whose is then not known.
    """
    calls = record.calls if record is not None else ()
    if len(calls) != caller.prompts:
        return
    each = caller.samples // caller.prompts
    for place, call in enumerate(sorted(calls, key=lambda call: (len(call.request_id), call.request_id))):
        for sample in call.samples:
            yield place * each + sample.index, (call, sample)


def _finish(ending: Ending, index: int, sample: TapSample | None, reply: Reply | None) -> Finish:
    if ending.lost:
        return Finish.ENGINE_LOST
    if ending.status >= 400 or ending.too_large is not None:
        return Finish.ERROR
    if ending.left and index not in ending.shown:
        return Finish.ABORT
    finish = _ENGINE_WORDS.get(sample.finish or "") if sample is not None else None
    if finish is Finish.STOP and reply is not None and reply.finish == "tool_calls":
        return Finish.TOOL_CALLS
    return finish or Finish.ERROR


def _turn(
    caller: Caller,
    ending: Ending,
    index: int,
    call: TapCall | None,
    sample: TapSample | None,
    reply: Reply | None,
) -> Turn:
    finish = _finish(ending, index, sample, reply)
    message = reply.message if reply is not None else None
    session, hashes = caller.conversation.close(caller.dialect.said(message) if message is not None else None)
    reason = why_untrainable(call, sample, finish, trains=caller.trains, arm=caller.arm)
    if message is None:
        reason = reason or "unreadable answer"  # what its tokens say, nobody could read: neither caller nor judge
    turn = Turn(
        turn_id=caller.turn_id,
        sample=index,
        policy=caller.policy,
        dialect=caller.dialect.name,
        key_id=caller.key.key_id,
        subject=caller.subject,
        session_id=caller.session or session,
        prefix_hashes=hashes,
        prompt_ids=call.prompt_ids if call is not None else b"",
        output_ids=sample.output_ids if sample is not None else b"",
        logprobs=sample.logprobs if sample is not None else b"",
        weight_versions=sample.weight_versions if sample is not None else (),
        sampling=call.sampling if call is not None else {},
        finish=finish,
        engine_id=ending.engine.engine_id,
        engine_build=ending.record.engine_build if ending.record is not None else ending.engine.build,
        arm=caller.arm,
        started_at=caller.started_at,
        first_token_at=ending.record.first_token_at if ending.record is not None else None,
        finished_at=ending.finished_at,
        request=caller.recorded,
        answer=_encode(message).decode() if message is not None else "",
        trainable=reason is None,
        untrainable_reason=reason,
    )
    try:
        turn.check()
    except ContractError:
        return msgspec.structs.replace(
            turn,
            prompt_ids=b"",
            output_ids=b"",
            logprobs=b"",
            weight_versions=(),
            trainable=False,
            untrainable_reason="damaged record",
        )
    return turn


def versions_of(turns: list[Turn]) -> list[str]:
    """The weight versions that the turns' tokens were sampled from, in order, each once."""
    return list(dict.fromkeys(span.version for turn in turns for span in turn.weight_versions))
