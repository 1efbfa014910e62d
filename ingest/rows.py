"""Events as rows of the lake: pure, no clock, no file.

`sort` decides which table each record of a batch belongs to; `to_arrow` makes the rows of one table its columns. What
does not decode, keep its contract or fit its column becomes a reject with a reason; what belongs to somebody who is
forgotten becomes nothing.
"""

import hashlib

import msgspec
import pyarrow as pa

from ingest.contracts.erasure import Erasure
from ingest.contracts.errors import ContractError
from ingest.contracts.events import Event, Record, decode_event
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, TURNS

Row = tuple[Record, Event | str]
"""A record with what it decoded to: an event, or the reason for its rejection."""


class Erased:
    """Who is forgotten: (`subject` or `session`, keyed hash)."""

    def __init__(self, targets: set[tuple[str, str]]) -> None:
        self._targets = targets

    def add(self, erasure: Erasure) -> None:
        """From now on its target is forgotten."""
        self._targets.add((erasure.target, erasure.target_id))

    def covers(self, event: Event | str) -> bool:
        """Whether the event is about somebody, or a session, that is forgotten."""
        if isinstance(event, Turn):
            return ("subject", event.subject) in self._targets or ("session", event.session_id) in self._targets
        if isinstance(event, Feedback):
            return ("subject", event.subject) in self._targets or (event.target, event.target_id) in self._targets
        return False


def sort(batch: list[Record], erased: Erased) -> tuple[dict[str, list[Row]], int]:
    """Rows by table, and how many events were dropped as erased. Erasures in the batch count for all of it."""
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
    for name in (TURNS, FEEDBACK):
        kept = [row for row in rows[name] if not erased.covers(row[1])]
        covered += len(rows[name]) - len(kept)
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
    if isinstance(event, Erasure) and (event.target not in ("subject", "session") or not event.target_id):
        raise ContractError("an erasure must name a subject or a session")
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
