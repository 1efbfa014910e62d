"""The redaction hook: what recorded turns and feedback go through on their way to the spool.

The answer that the caller gets is never touched. A turn in whose texts something was found keeps them redacted, and
loses its ids, logprobs and spans, for ids decode to the text; it is not trainable. So does a turn whose ids may say
what no text here shows: an answer that ended early or could not be read, reasoning that the request hides, a prompt
given as ids.

It fails closed: what cannot be redacted (the function raises, it would take too much, its time is up) is recorded
without any text. Work is done in threads of its own, so that a slow function holds no other turn up; RE2 lets go of
the interpreter while it searches. A key's turns are redacted one at a time, so that no caller has all threads, and a
thread itself looks at the clock, so that it comes back when nobody waits for it any more.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from ingest.contracts.feedback import Feedback
from ingest.contracts.fleet import Policy, Redaction
from ingest.contracts.turn import Finish, Turn
from serving.gateway.errors import CaptureFailed
from serving.redaction import RedactionError, Redactor

log = logging.getLogger(__name__)
REDACTED = "redacted"
FAILED = "redaction failed"
_THREADS = 2
_UNFINISHED = frozenset({Finish.ABORT, Finish.ERROR, Finish.ENGINE_LOST})
"""Not trainable anyway; their last tokens may not have reached the text."""
_replace = msgspec.structs.replace
_Kind = TypeVar("_Kind", Turn, Feedback)


class Redactions:
    """Applies what policies say. `seconds`: how long one turn's redaction may take, its wait for a thread included."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_THREADS, "redaction")
        self._ready: dict[bytes, Redactor] = {}
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def turns(self, policy: Policy, turns: Sequence[Turn]) -> list[Turn]:
        """The samples of one call as they may be recorded under `policy`, which redacts something."""
        redaction = policy.redaction
        assert redaction is not None, "the caller looked"

        def work(deadline: float) -> list[Turn]:
            redactor = self._redactor(redaction)
            requests: dict[str, tuple[str, bool]] = {}
            return [redacted(turn, redactor, requests, deadline) for turn in turns]

        try:
            return await self._in_thread(turns[0].key_id, work)
        except Exception as error:  # noqa: BLE001 whatever it was, no text may pass; messages may quote it
            why = str(error) if isinstance(error, RedactionError) else type(error).__name__
            log.error("policy %s: a turn is recorded without text, ids and logprobs: %s", policy.name, why)
            return [_stripped(turn, FAILED, request="", answer="") for turn in turns]

    async def feedback(self, policies: Iterable[Policy], items: Sequence[Feedback]) -> list[Feedback]:
        """Feedback as it may be recorded: which policy it speaks of is not known yet, so all redactions apply.

        Raises `CaptureFailed` where one fails: an edit without its text would say something else.
        """
        redactions = [policy.redaction for policy in policies if policy.redaction is not None]
        if not redactions or all(item.text is None for item in items):
            return list(items)

        def work(deadline: float) -> list[Feedback]:
            redactors = [self._redactor(redaction) for redaction in redactions]
            return [_reworded(item, redactors, deadline) for item in items]

        try:
            return await self._in_thread(items[0].key_id, work)
        except Exception as error:  # noqa: BLE001 as above
            log.error("feedback cannot be redacted: %s", type(error).__name__)
            raise CaptureFailed("The feedback's text could not be redacted: send it again.") from None

    def close(self) -> None:
        """Lets the threads end when they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, key_id: str, work: Callable[[float], list[_Kind]]) -> list[_Kind]:
        """What `work` gives, which is told its deadline, when its key's turn has come. Raises `TimeoutError`."""
        deadline = time.monotonic() + self._seconds
        async with asyncio.timeout(self._seconds), self._keys.setdefault(key_id, asyncio.Lock()):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, deadline)

    def _redactor(self, redaction: Redaction) -> Redactor:
        key = msgspec.msgpack.encode(redaction)
        found = self._ready.get(key)
        if found is None:
            found = self._ready[key] = Redactor(redaction)
        return found


def redacted(turn: Turn, redactor: Redactor, requests: dict[str, tuple[str, bool]], deadline: float = math.inf) -> Turn:
    """`turn` as it may be recorded. `requests` are those seen before, redacted, and whether they hide something.

    Raises as `Redactor.json`, which knows the `deadline`.
    """
    if turn.request not in requests:
        requests[turn.request] = _request(turn.request, redactor, deadline)
    request, hides = requests[turn.request]
    answer = redactor.json(turn.answer, deadline)
    unread = hides or turn.finish in _UNFINISHED or (turn.output_ids and not turn.answer)
    if request == turn.request and answer == turn.answer and not unread:
        return turn
    return _stripped(turn, REDACTED, request=request, answer=answer)


def _request(request: str, redactor: Redactor, deadline: float) -> tuple[str, bool]:
    """The request without what was found; and whether ids may say what its texts, and its answer's, do not."""
    if not request:
        return request, True
    body = msgspec.json.decode(request)
    hides = body.get("include_reasoning") is False
    if _has_ids(body.get("prompt")):
        hides = True
        request = msgspec.json.encode(body | {"prompt": "[REDACTED:token_ids]"}).decode()
    return redactor.json(request, deadline), hides


def _has_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and any(not isinstance(part, str) for part in prompt)


def _stripped(turn: Turn, reason: str, *, request: str, answer: str) -> Turn:
    """`turn` with these texts and without arrays. Who opted out stays so: that reason also censors feedback."""
    kept = turn.untrainable_reason == "opted out"
    return _replace(
        turn,
        request=request,
        answer=answer,
        prompt_ids=b"",
        output_ids=b"",
        logprobs=b"",
        weight_versions=(),
        trainable=False,
        untrainable_reason=turn.untrainable_reason if kept else reason,
    )


def _reworded(item: Feedback, redactors: Sequence[Redactor], deadline: float) -> Feedback:
    text = item.text
    if text is None:
        return item
    for redactor in redactors:
        text = redactor.text(text, deadline)
    return item if text == item.text else _replace(item, text=text)
