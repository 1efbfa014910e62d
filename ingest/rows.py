"""Events as rows of the lake: pure, no clock, no file.

`sort` decides which table each record of a batch belongs to, and makes the rows of each table its columns. What does
not decode, keep its contract or fit its column becomes a reject with its bytes and a reason; what belongs to somebody
who is forgotten becomes nothing.
"""

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import NamedTuple

import msgspec
import pyarrow as pa

from ingest.contracts.erasure import TARGETS, Erasure, erasable, erasure_digest
from ingest.contracts.errors import ContractError
from ingest.contracts.events import VERSIONS, Event, Record, decode_event
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.derived import Derived, derive
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, TURNS

_READS = msgspec.json.encode([version("everloop"), VERSIONS, msgspec.json.schema(Event)])
READER = hashlib.sha256(_READS).hexdigest()[:16]
"""Names the code that decodes events: another one may read what this one rejects."""

Row = tuple[Record, Event | str]
"""A record with what it decoded to: an event, or the reason for its rejection."""


class Sorted(NamedTuple):
    """A batch by table, in the tables' schemas."""

    tables: dict[str, pa.Table]
    covered: int
    """Events dropped because they were erased."""
    gone: frozenset[str]
    """Ids of the turns among them."""


class Erased:
    """What is forgotten: the erasures by their digests."""

    def __init__(self, erasures: Iterable[Erasure] = ()) -> None:
        self._erasures = {erasure.digest: erasure for erasure in erasures}

    def add(self, erasure: Erasure) -> bool:
        """From now on its target is forgotten; whether that is new."""
        return self._erasures.setdefault(erasure.digest, erasure) is erasure

    def covering(self, targets: Iterable[tuple[str, str]]) -> Erasure | None:
        """The erasure that one of the (target, id) falls under. Nothing is hashed where nobody is forgotten."""
        if not self._erasures:
            return None
        digests = (erasure_digest(*pair) for pair in targets)
        return next((self._erasures[digest] for digest in digests if digest in self._erasures), None)


def sort(batch: list[Record], erased: Erased, now: float, screen: Callable[[Event], Event] | None = None) -> Sorted:
    """The batch by table. Erasures in it count for all of it; they are added to `erased`. `screen` makes of an event
    what may land of it.

    A turn that is dropped leaves an erasure of itself in its place: feedback on it does not land either, whoever sends
    it and whenever it comes.
    """
    rows: dict[str, list[Row]] = {name: [] for name in (TURNS, FEEDBACK, ERASURES, REJECTS)}
    for record in batch:
        try:
            event = screen(_decode(record.payload)) if screen else _decode(record.payload)
        except ContractError as error:
            rows[REJECTS].append((record, str(error)))
            continue
        rows[_table_of(event)].append((record, event))
        if isinstance(event, Erasure):
            erased.add(event)
    covered = 0
    gone: set[str] = set()
    for name in (TURNS, FEEDBACK):  # a batch's dropped turns count for its feedback
        kept: list[Row] = []
        for record, about in rows[name]:
            assert isinstance(about, Turn | Feedback)
            erasure = erased.covering(erasable(about))
            if erasure is None:
                kept.append((record, about))
                continue
            covered += 1
            if isinstance(about, Turn):
                gone.add(about.turn_id)
                itself = msgspec.structs.replace(erasure, target="turn", digest=erasure_digest("turn", about.turn_id))
                if erased.add(itself):
                    rows[ERASURES].append((record, itself))
        rows[name] = kept
    rows[TURNS].sort(key=lambda row: row[1].session_id)  # type: ignore[union-attr]  # see `ingest.commits.WRITER`
    tables: dict[str, pa.Table] = {}
    for name in (TURNS, FEEDBACK, ERASURES):
        tables[name], unfit = _fitting(name, rows[name], now)
        rows[REJECTS] += unfit
    kept = [row for row in rows[REJECTS] if erased.covering(named(row[0].payload)) is None]
    covered += len(rows[REJECTS]) - len(kept)
    tables[REJECTS] = to_arrow(REJECTS, kept, now)
    return Sorted(tables, covered, frozenset(gone))


def to_arrow(name: str, rows: list[Row], now: float) -> pa.Table:
    """Rows of one table in its schema. Raises `pa.ArrowException` or `OverflowError` where a value does not fit."""
    derived = [derive(event) for _, event in rows if isinstance(event, Turn)]
    columns = [pa.array(_column(field.name, rows, derived, now), type=field.type) for field in SCHEMAS[name]]
    return pa.table(columns, schema=SCHEMAS[name])


def _decode(payload: bytes) -> Event:
    event = decode_event(payload)
    if isinstance(event, Erasure) and (event.target not in TARGETS or not event.digest):
        raise ContractError("an erasure must name a subject, a session or a turn")
    return event


def _table_of(event: Event) -> str:
    return TURNS if isinstance(event, Turn) else FEEDBACK if isinstance(event, Feedback) else ERASURES


def _fitting(name: str, rows: list[Row], now: float) -> tuple[pa.Table, list[Row]]:
    """The rows that fit, all at once where all do, as they nearly always do; and those that do not, as rejects."""
    try:
        return to_arrow(name, rows, now), []
    except (pa.ArrowException, OverflowError):
        pass
    fit: list[Row] = []
    unfit: list[Row] = []
    for row in rows:
        try:
            to_arrow(name, [row], now)
            fit.append(row)
        except (pa.ArrowException, OverflowError) as error:
            unfit.append((row[0], f"a value does not fit table {name}: {type(error).__name__}"))
    return to_arrow(name, fit, now), unfit


def named(payload: bytes) -> list[tuple[str, str]]:
    """(target, id) of whom and what an event on the log is about, as far as it can be read."""
    try:
        found = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    pairs = [("subject", found.get("subject")), ("session", found.get("session_id")), ("turn", found.get("turn_id"))]
    pairs.append(("session" if found.get("target") == "session" else "turn", found.get("target_id")))
    return [(target, value) for target, value in pairs if value and isinstance(value, str)]


def _column(column: str, rows: list[Row], derived: list[Derived], now: float) -> list:
    match column:
        case "spool_id" | "sequence":
            return [getattr(record, column) for record, _ in rows]
        case "landed_at":
            return [now] * len(rows)
        case "weight_versions":
            return [[(s.version, s.start, s.end) for s in getattr(turn, column)] for _, turn in rows]
        case "sampling":
            return [msgspec.json.encode(getattr(turn, column)).decode() for _, turn in rows]
        case "reason":
            return [reason for _, reason in rows]
        case "payload":
            return [record.payload for record, _ in rows]
        case "about":
            return [[erasure_digest(*pair) for pair in named(record.payload)] for record, _ in rows]
        case "reader":
            return [READER] * len(rows)
        case _ if column in Derived._fields:
            return [getattr(columns, column) for columns in derived]
        case _:
            return [getattr(event, column) for _, event in rows]
