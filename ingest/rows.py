"""Events as rows of the lake: pure, no clock, no file.

`sort` decides which table each record of a batch belongs to; `to_arrow` makes the rows of one table its columns. What
does not decode, keep its contract or fit its column becomes a reject with a reason; what belongs to somebody who is
forgotten becomes nothing.
"""

import hashlib
from collections.abc import Iterable

import msgspec
import pyarrow as pa

from ingest.contracts.erasure import TARGETS, Erasure, erasable, erasure_digest
from ingest.contracts.errors import ContractError
from ingest.contracts.events import Event, Record, decode_event
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, TURNS

Row = tuple[Record, Event | str]
"""A record with what it decoded to: an event, or the reason for its rejection."""


class Erased:
    """What is forgotten: the erasures by their digests."""

    def __init__(self, erasures: Iterable[Erasure] = ()) -> None:
        self._erasures = {erasure.digest: erasure for erasure in erasures}

    def add(self, erasure: Erasure) -> bool:
        """From now on its target is forgotten; whether that is new."""
        return self._erasures.setdefault(erasure.digest, erasure) is erasure

    def covering(self, event: Turn | Feedback) -> Erasure | None:
        """The erasure that the event falls under. Nothing is hashed where nobody is forgotten."""
        if not self._erasures:
            return None
        digests = (erasure_digest(*pair) for pair in erasable(event))
        return next((self._erasures[digest] for digest in digests if digest in self._erasures), None)


def sort(batch: list[Record], erased: Erased) -> tuple[dict[str, list[Row]], int]:
    """Rows by table, and how many events were dropped as erased. Erasures in the batch count for all of it.

    A turn that is dropped leaves an erasure of itself in its place: feedback on it does not land either, whoever sends
    it and whenever it comes.
    """
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for record in batch:
        try:
            event = _decode(record.payload)
        except ContractError as error:
            rows[REJECTS].append((record, str(error)))
            continue
        rows[_table_of(event)].append((record, event))
        if isinstance(event, Erasure):
            erased.add(event)
    covered = 0
    for name in (TURNS, FEEDBACK):  # a batch's dropped turns count for its feedback
        kept: list[Row] = []
        for record, about in rows[name]:
            assert isinstance(about, Turn | Feedback)
            erasure = erased.covering(about)
            if erasure is None:
                kept.append((record, about))
                continue
            covered += 1
            if isinstance(about, Turn):
                gone = msgspec.structs.replace(erasure, target="turn", digest=erasure_digest("turn", about.turn_id))
                if erased.add(gone):
                    rows[ERASURES].append((record, gone))
        rows[name] = kept
    for name in (TURNS, FEEDBACK, ERASURES):
        rows[name], unfit = _split_by_fit(name, rows[name])
        rows[REJECTS] += unfit
    return rows, covered


def to_arrow(name: str, rows: list[Row], now: float) -> pa.Table:
    """Rows of one table in its schema. Raises `pa.ArrowException` or `OverflowError` where a value does not fit."""
    columns = [pa.array(_column(field.name, rows, now), type=field.type) for field in SCHEMAS[name]]
    return pa.table(columns, schema=SCHEMAS[name])


def _decode(payload: bytes) -> Event:
    event = decode_event(payload)
    if isinstance(event, Erasure) and (event.target not in TARGETS or not event.digest):
        raise ContractError("an erasure must name a subject, a session or a turn")
    return event


def _table_of(event: Event) -> str:
    return TURNS if isinstance(event, Turn) else FEEDBACK if isinstance(event, Feedback) else ERASURES


def _split_by_fit(name: str, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """All at once where all fit, as they nearly always do; else one by one."""
    if _misfit(name, rows) is None:
        return rows, []
    fit: list[Row] = []
    unfit: list[Row] = []
    for row in rows:
        if (misfit := _misfit(name, [row])) is None:
            fit.append(row)
        else:
            unfit.append((row[0], f"a value does not fit table {name}: {misfit}"))
    return fit, unfit


def _misfit(name: str, rows: list[Row]) -> str | None:
    try:
        to_arrow(name, rows, 0.0)
    except (pa.ArrowException, OverflowError) as error:
        return type(error).__name__
    return None


def _column(column: str, rows: list[Row], now: float) -> list:
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
        case "size":
            return [len(record.payload) for record, _ in rows]
        case "sha256":
            return [hashlib.sha256(record.payload).hexdigest() for record, _ in rows]
        case _:
            return [getattr(event, column) for _, event in rows]
