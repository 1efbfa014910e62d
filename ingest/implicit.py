"""Implicit signals: what the traffic itself tells about an answer, marked as such and worth nothing by default.

Computed in the attribution join (`sql/implicit.sql`) from the turns of the lake, each time anew: nothing is stored, so
nothing can be computed twice. Each is a row of `signal` with the rule as its kind, `implicit:<rule>` as its source, and
a feedback id made of rule, turn and sample. A rule that `policies.X.rewards.implicit` gives no number is shown and
counted in rates, and changes no state and no reward.

- `regenerated`: the turn's subject sent the identical prompt again in the same session, within `retry_seconds` after
  its end: what makes a turn that nobody judged `superseded`. Where the rule has a number, the turn is judged by it.
- `abandoned`: the caller left before the end (finish `abort`; such a turn is censored, whatever the rule is worth); or
  the answer called a tool, and nothing followed it in its session within the window.
- `dissatisfied`: the user's next words, in a request that goes on from the answer, say so: the classifier gives 0.5 or
  more (the signal's value).
- `invalid_tool_call`: the answer calls a tool that its request did not offer, or with arguments that are no JSON object
  or do not fit the tool's schema.
- `tool_error`: a request that goes on from the answer brings a tool's result that is an error: by the format's own mark
  (`is_error` of messages), or else by its text (`tool_error_prefixes`, `tool_error_keys`).

A request **goes on from** an answer when the session chain says so: its last answer is that one, after the same words.
Of several turns with the same words and answer it is the one whose end was nearest to its start.

Invariant: a signal that a join finds is found by every later one, whatever lands then: what follows a turn is looked at
only up to the watermark, where nothing is missing. It counts as received when the event that completes it was: at the
end of the turn that followed; at the end of the window where none did.

Nothing is read of a turn that opted out of training, was sampled for an evaluation, or was erased.
"""

import functools
import hashlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
from duckdb.func import SPECIAL

from ingest.config import ImplicitSettings
from ingest.contracts.errors import ContractError
from ingest.contracts.functions import load_function
from ingest.formats import FORMATS, Call, Result
from ingest.tool_schemas import fits

_REDACTED = "[REDACTED"


class ClassifierError(Exception):
    """The classifier cannot be used: says which and why, and nothing of the text."""


class Classifier(msgspec.Struct, frozen=True):
    """Which classifier judged: its import path, and the SHA-256 of the file that holds it."""

    name: str
    digest: str


def identify(settings: ImplicitSettings) -> Classifier:
    """The configured classifier's identity. Raises `ClassifierError` where there is none."""
    function = _load(settings.classifier)
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    if file is None:
        raise ClassifierError(
            f"the classifier {settings.classifier!r} is in no file, so it has no digest: put it in a module"
        )
    return Classifier(settings.classifier, hashlib.sha256(Path(file).read_bytes()).hexdigest())


def register(join: duckdb.DuckDBPyConnection, settings: ImplicitSettings) -> None:
    """The functions that `implicit.sql` asks of a turn's texts; Spark registers the same ones.

    Raises `ClassifierError`.
    """
    classify = _load(settings.classifier)

    def read_tail(dialect: str, request: str) -> dict[str, Any]:
        tail = FORMATS[dialect].tail(request) if dialect in FORMATS else None
        if tail is None:
            return {"failed": False, "dissatisfied": None}
        return {
            "failed": any(is_error(result, settings) for result in tail.results),
            "dissatisfied": None if tail.said is None else _probability(settings.classifier, classify, tail.said),
        }

    text: Any = "VARCHAR"
    join.create_function("tool_calls", tool_calls, [text] * 3, text, null_handling=SPECIAL)
    join.create_function("answer_text", answer_text, [text] * 2, text, null_handling=SPECIAL)
    join.create_function("read_tail", read_tail, [text] * 2, "STRUCT(failed BOOLEAN, dissatisfied DOUBLE)")


def answer_text(dialect: str | None, answer: str | None) -> str | None:
    """What an answer says to its reader; None where it is not known."""
    return FORMATS[dialect].text(answer) if dialect in FORMATS and answer else None


def tool_calls(dialect: str | None, request: str | None, answer: str | None) -> str | None:
    """`valid` or `invalid`, the answer's tool calls together; None where it has none."""
    calls = FORMATS[dialect].calls(answer) if dialect in FORMATS and answer else []
    if not calls:
        return None
    offered = FORMATS[dialect].offered(request or "")  # type: ignore[index]
    return "valid" if all(_is_valid(call, offered) for call in calls) else "invalid"


def is_error(result: Result, settings: ImplicitSettings) -> bool:
    """Whether a tool's result is an error: as the format says, or as its text does where the format has no word."""
    if result.failed is not None:
        return result.failed
    text = result.text.strip()
    for prefix in settings.tool_error_prefixes:
        if text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum():
            return True
    value = _json(text) if text.startswith("{") else None
    return isinstance(value, dict) and any(value.get(key) for key in settings.tool_error_keys)


def _is_valid(call: Call, offered: dict[str, dict | None]) -> bool:
    if call.name not in offered:
        return False
    arguments = call.arguments
    if arguments is None or _REDACTED in str(arguments):  # what was taken out cannot be judged
        return True
    if isinstance(arguments, str):
        arguments = _json(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        return False
    schema = offered[str(call.name)]
    return schema is None or fits(arguments, schema)


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


@functools.cache
def _load(path: str) -> Callable[[str], object]:
    try:
        return load_function(path)
    except ContractError as error:
        raise ClassifierError(f"the classifier {path!r} {error}: write `module:function`") from error


def _probability(path: str, classify: Callable[[str], object], text: str) -> float:
    try:
        value = float(classify(text))  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - anybody's code; what it raises may quote the text
        raise ClassifierError(f"the classifier {path!r} failed with {type(error).__name__}") from None
    if not math.isfinite(value) or not 0 <= value <= 1:
        raise ClassifierError(f"the classifier {path!r} gave {value}: a probability, true or false is asked of it")
    return value
