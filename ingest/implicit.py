"""Implicit signals: what the traffic itself tells about an answer, marked as such and worth nothing by default.

Computed in the attribution join (`sql/implicit.sql`) from the turns of the lake, each time anew: no signal is stored,
so none can be computed twice. What the rules read of texts was taken out of them at landing (`ingest.derived`). Each is
a row of `signal` with the rule as its kind, `implicit:<rule>` as its source, and a feedback id made of rule, turn and
sample. A rule that `policies.X.rewards.implicit` gives no number is shown and counted in rates, and changes no state
and no reward.

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
import pyarrow as pa
from duckdb.func import ARROW, SPECIAL

from ingest.config import ImplicitSettings
from ingest.contracts.errors import ContractError
from ingest.contracts.functions import load_function
from ingest.edit_distance import edit_distance
from ingest.formats import FORMATS, as_json

_EDIT_LENGTH = 2000


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


def text_functions(settings: ImplicitSettings) -> tuple[tuple[str, Callable[..., Any], str], ...]:
    """The functions that the SQL asks of texts: name, function of values, SQL type of what it gives.

    Raises `ClassifierError`.
    """
    complaint = functools.partial(_probability, settings.classifier, _load(settings.classifier))
    failed = functools.partial(is_error, settings=settings)
    return ("kept_share", kept_share, "double"), ("complaint", complaint, "double"), ("is_error", failed, "boolean")


def register(join: duckdb.DuckDBPyConnection, settings: ImplicitSettings) -> None:
    """Makes them known to DuckDB, a column at a time: its own way from row to row costs more than they do.

    Raises `ClassifierError`."""
    for name, function, kind in text_functions(settings):
        columns = _of_three(function) if function is kept_share else _of_one(function, kind)
        parameters: list[Any] = ["VARCHAR"] * (3 if function is kept_share else 1)
        join.create_function(name, columns, parameters, kind, type=ARROW, null_handling=SPECIAL)


def _of_one(function: Callable[..., Any], kind: str) -> Callable[[pa.ChunkedArray], pa.Array]:
    given = pa.float64() if kind == "double" else pa.bool_()
    return lambda column: pa.array([function(value) for value in column.to_pylist()], given)


def _of_three(function: Callable[..., Any]) -> Callable[..., pa.Array]:
    return lambda one, two, three: pa.array(
        map(function, one.to_pylist(), two.to_pylist(), three.to_pylist()), pa.float64()
    )


def kept_share(dialect: str | None, answer: str | None, text: str | None) -> float | None:
    """What a user kept of an answer: 1 − edit distance / length of the longer text, of the first 2,000 characters of
    both; None where either is not known."""
    said = FORMATS[dialect].text(answer) if dialect in FORMATS and answer else None
    if said is None or text is None:
        return None
    said, text = said[:_EDIT_LENGTH], text[:_EDIT_LENGTH]
    return 1.0 - edit_distance(said, text) / max(len(said), len(text), 1)


def is_error(result: str, settings: ImplicitSettings) -> bool:
    """Whether a tool's result is an error by its text, where its format has no mark for it."""
    text = result.strip()
    for prefix in settings.tool_error_prefixes:
        if text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum():
            return True
    value = as_json(text) if text.startswith("{") else None
    return isinstance(value, dict) and any(value.get(key) for key in settings.tool_error_keys)


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
