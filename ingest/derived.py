"""What the join needs of a turn's texts, computed once, when the turn lands: a look at the lake then parses no request.

Texts are kept as short as the rules that read them allow. Of a turn whose caller opted out of training, or that was
sampled for an evaluation, no text is read.
"""

import hashlib
from typing import NamedTuple

import msgspec

from ingest.contracts.turn import Finish, Turn
from ingest.formats import FORMATS, Call, as_json, metadata
from ingest.tool_schemas import fits

SAID_LENGTH = 4000
"""Characters of the user's next words: what the classifier is shown."""
RESULT_LENGTH = 128
"""Characters of a tool's result, and keys of one that is an object: what the convention of errors is held against."""
METADATA_LENGTH = 512
"""Characters of a value of the request's metadata."""

_REDACTED = "[REDACTED"
_CUT_SHORT = (Finish.ABORT, Finish.ERROR, Finish.ENGINE_LOST)
_WITHOUT_ANSWER, _WITH_ANSWER = 2, 3
"""Place from the end, in `Turn.prefix_hashes`, of the hash after the request's last answer."""


class Derived(NamedTuple):
    """Columns of the lake's turns beside the fields of the event. None: there is nothing of the kind."""

    prompt_digest: bytes | None
    """Equal for equal prompts, over all samples and turns: the first 16 bytes of the packed token ids' SHA-256, which
    processors have instructions for."""
    output_tokens: int
    answer_hash: str | None
    """The conversation's hash after this answer."""
    parent_hash: str | None
    """The `answer_hash` of the answer that the request goes on from."""
    metadata: str | None
    """The request's metadata as a JSON object of strings."""
    calls: str | None
    """`valid` or `invalid`, the answer's tool calls together. None also where the answer was cut short."""
    tail_said: str | None
    """The user's words after the answer that the request goes on from."""
    tail_failed: bool | None
    """Whether a tool's result after that answer is marked as an error by its format."""
    tail_results: list[str] | None
    """Results without such a mark, as `ingest.implicit.is_error` needs them: how the text begins, or an object of the
    keys that are neither false nor empty."""


def derive(turn: Turn) -> Derived:
    """The derived columns of a turn. Whatever its texts are, nothing is raised."""
    hashes, answered = turn.prefix_hashes, bool(turn.answer)
    place = _WITH_ANSWER if answered else _WITHOUT_ANSWER
    parent = hashes[-place] if len(hashes) >= place else None
    form = FORMATS.get(turn.dialect)
    readable = form is not None and turn.arm != "evaluation" and turn.untrainable_reason != "opted out"
    tail = form.tail(turn.request) if form is not None and readable and parent is not None else None
    unmarked = [_distilled(result.text) for result in tail.results if result.failed is None] if tail else []
    named = metadata(turn.request)
    return Derived(
        prompt_digest=hashlib.sha256(turn.prompt_ids).digest()[:16] if turn.prompt_ids else None,
        output_tokens=len(turn.output_ids) // 4,
        answer_hash=hashes[-1] if answered and hashes else None,
        parent_hash=parent,
        metadata=msgspec.json.encode({k: v[:METADATA_LENGTH] for k, v in named.items()}).decode() if named else None,
        calls=_calls(turn) if readable and turn.finish not in _CUT_SHORT else None,
        tail_said=tail.said[:SAID_LENGTH] if tail and tail.said is not None else None,
        tail_failed=any(result.failed is True for result in tail.results) if tail else None,
        tail_results=list(dict.fromkeys(unmarked)) or None,
    )


def _distilled(text: str) -> str:
    """A result's text, as far as the convention of errors looks at it."""
    text = text.strip()
    value = as_json(text) if text.startswith("{") else None
    if not isinstance(value, dict):
        return text[:RESULT_LENGTH]
    telling = [key[:RESULT_LENGTH] for key, found in value.items() if found]
    return msgspec.json.encode(dict.fromkeys(telling[:RESULT_LENGTH], True)).decode()


def _calls(turn: Turn) -> str | None:
    if '"tool' not in turn.answer and '_call"' not in turn.answer:  # only what may hold a call is parsed
        return None
    calls = FORMATS[turn.dialect].calls(turn.answer)
    if not calls:
        return None
    offered = FORMATS[turn.dialect].offered(turn.request)
    return "valid" if all(_is_valid(call, offered) for call in calls) else "invalid"


def _is_valid(call: Call, offered: dict[str, dict | None]) -> bool:
    if not isinstance(call.name, str) or call.name not in offered:
        return False
    arguments = call.arguments
    if arguments is None or _REDACTED in str(arguments):  # what was taken out cannot be judged
        return True
    if isinstance(arguments, str):
        arguments = as_json(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        return False
    schema = offered[call.name]
    return schema is None or fits(arguments, schema)
