"""The chosen turns, read from the lake in the order of a dataset, which is not the lake's.

Gateways land side by side, a dead one's turns come late, and files are merged by their size: where a turn stands in the
lake says little about when it ended. So first ids alone are read, to learn which row of which row group is which row of
the dataset; its number there, from 0, is its *place*. Then each row group is read, those with earlier places first, and
a row waits until all before it are out.

Invariant: no more wait than `_WAITING_BYTES` and what one batch holds. Where more would, the latest of them are let go
of, and their row groups are read again once the earlier ones are out: memory grows neither with the dataset nor with
the lake's disorder.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from ingest.datasets import ROWS
from ingest.formats import FORMATS
from ingest.language import LOOKED_AT, language

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_WAITING_BYTES = 128 << 20
_READ_ROWS = 512
_BY_PAGES = pyarrow.dataset.ParquetFragmentScanOptions(use_buffered_stream=True, buffer_size=1 << 20, pre_buffer=False)
"""Otherwise a whole row group is read ahead, which may be a file of 128 MB."""
_NEVER = np.iinfo(np.int64).max

_STANDS = pa.schema([("turn_id", pa.string()), ("sample", pa.int32()), ("row_group", pa.int32()), ("row", pa.int64())])
_KNOWN = ("turn_id", "sample", "feedback_revision", "segment", "reward", "weight")
"""Columns of a dataset that come from the choice. The others are the lake's, but for the language, which is found."""
_OF_THE_LAKE = [name for name in ROWS.names if name not in (*_KNOWN, "language")]
_PACKED = ("prompt_ids", "output_ids", "logprobs")


class DatasetError(ValueError):
    """Turns of the lake that cannot become rows: says which."""


class _Source(NamedTuple):
    """A row group with chosen turns: in which of its rows they are, ascending, and the place of each."""

    group: pyarrow.dataset.ParquetFileFragment
    rows: np.ndarray
    places: np.ndarray

    def since(self, place: int) -> "_Source":
        """Without earlier places."""
        left = self.places >= place
        return _Source(self.group, self.rows[left], self.places[left])


Placed = tuple[np.ndarray, pa.RecordBatch]
"""Rows, and the place of each."""


def chosen_rows(join: "DuckDBPyConnection", turns: pyarrow.dataset.Dataset, policy: str) -> Iterator[pa.RecordBatch]:
    """The turns of the join's table `chosen`, with what the lake's `turns` have of them: `ROWS`, in their order.

    Raises `DatasetError` where a turn's arrays are torn."""
    known, sources = _located(join, turns, policy)
    stride = max(1, -(-known.num_rows // LOOKED_AT))
    out = 0
    for rows in _in_order(sources, lambda source: _read(source, turns.schema, stride)):
        yield _joined(known.slice(out, rows.num_rows), rows)
        out += rows.num_rows


def _located(join: "DuckDBPyConnection", turns: pyarrow.dataset.Dataset, policy: str) -> tuple[pa.Table, list[_Source]]:
    """What the choice knows of each row of the dataset, and where the rest of it stands in the lake."""
    ((first, last),) = join.execute("SELECT min(finished_at), max(finished_at) FROM chosen").fetchall()
    if first is None:
        return ROWS.empty_table(), []
    young = (pc.field("finished_at") >= first) & (pc.field("finished_at") <= last)
    groups = [group for file in turns.get_fragments(young) for group in file.split_by_row_group(young, turns.schema)]
    join.register("stands", pa.RecordBatchReader.from_batches(_STANDS, _stands(groups, turns.schema, policy)))
    located = join.sql(
        """
        SELECT c.turn_id, c.sample, c.revision AS feedback_revision, c.segment, c.reward, c.weight, s.row_group, s.row
        FROM stands s JOIN chosen c ON s.turn_id = c.turn_id AND s.sample = c.sample ORDER BY c.place
        """
    ).to_arrow_table()
    group, row = located["row_group"].to_numpy(), located["row"].to_numpy()
    places = np.lexsort((row, group))
    by_group = np.split(places, np.flatnonzero(np.diff(group[places])) + 1)
    sources = [_Source(groups[group[found[0]]], row[found], found) for found in by_group]
    return located.select(_KNOWN).combine_chunks(), sources


def _stands(
    groups: list[pyarrow.dataset.ParquetFileFragment], schema: pa.Schema, policy: str
) -> Iterator[pa.RecordBatch]:
    """Which turns of the policy stand where."""
    for number, group in enumerate(groups):
        row = 0
        for batch in group.to_batches(schema, columns=["turn_id", "sample", "policy"]):
            here = np.full(batch.num_rows, number, np.int32), np.arange(row, row + batch.num_rows)
            stands = pa.RecordBatch.from_arrays(
                [batch["turn_id"], batch["sample"], *map(pa.array, here)], schema=_STANDS
            )
            yield stands.filter(pc.equal(batch["policy"], policy))
            row += batch.num_rows


def _in_order(sources: list[_Source], read: Callable[[_Source], Iterator[Placed]]) -> Iterator[pa.RecordBatch]:
    """The rows of all sources by their places, from the first to the last."""
    out = 0
    while left := [source for source in (source.since(out) for source in sources) if len(source.places)]:
        left.sort(key=lambda source: source.places.min())
        waiting = _Waiting(out)
        for places, rows in chain.from_iterable(map(read, left)):
            waiting.add(places, rows)
            yield from waiting.ready()
            if waiting.out == waiting.end:
                break
        out = waiting.out


class _Waiting:
    """Rows that wait for those before them. All before `out` are out; from `end` on there is no room."""

    def __init__(self, out: int) -> None:
        self.out, self.end = out, _NEVER
        self._places = np.empty(0, np.int64)
        self._rows: list[pa.RecordBatch] = []

    def add(self, places: np.ndarray, rows: pa.RecordBatch) -> None:
        """More of them, in any order."""
        if not (fit := places < self.end).all():
            places, rows = places[fit], rows.filter(pa.array(fit))
        self._places = np.append(self._places, places)
        self._rows.append(rows)

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Those before which none is missing, once they are so many that it pays to move the others; where too much is
        left, the later half goes."""
        places = np.sort(self._places)
        number = int(np.searchsorted(places - np.arange(self.out, self.out + len(places)), 0, side="right"))
        if number and (4 * number >= len(places) or self._is_full()):
            self.out += number
            _, rows = self._taken(self.out)
            yield rows
        while self._is_full() and len(self._places) > 1:
            self.end = int(np.median(self._places)) + 1
            self._places, rows = self._taken(self.end)
            self._rows = [rows]

    def _is_full(self) -> bool:
        return sum(rows.nbytes for rows in self._rows) > _WAITING_BYTES

    def _taken(self, end: int) -> tuple[np.ndarray, pa.RecordBatch]:
        """Those before `end`, in their order; they are no longer here."""
        rows = pa.Table.from_batches(self._rows)
        early = self._places < end
        order = np.flatnonzero(early)[np.argsort(self._places[early])]
        [taken] = rows.take(order).combine_chunks().to_batches()
        places = self._places[order]
        self._places, self._rows = self._places[~early], rows.filter(pa.array(~early)).to_batches()
        return places, taken


def _read(source: _Source, schema: pa.Schema, stride: int) -> Iterator[Placed]:
    """Its chosen rows: columns `_OF_THE_LAKE`, and the language of the answer at every `stride`th place."""
    begin = 0
    for batch in source.group.to_batches(
        schema,
        columns=[*_OF_THE_LAKE, "answer"],
        batch_size=_READ_ROWS,
        batch_readahead=2,
        fragment_scan_options=_BY_PAGES,
    ):
        first, last = np.searchsorted(source.rows, (begin, begin + batch.num_rows))
        if first < last:
            places, rows = source.places[first:last], batch.take(source.rows[first:last] - begin)
            languages = _languages(rows, places % stride == 0)
            yield places, rows.drop_columns(["answer"]).append_column("language", languages)
        begin += batch.num_rows


def _languages(rows: pa.RecordBatch, looked_at: np.ndarray) -> pa.Array:
    """The language of each answer; None where it is not to be looked at."""
    answers = pc.if_else(pa.array(looked_at), rows["answer"], None).to_pylist()
    return pa.array([_language(*row) for row in zip(rows["dialect"].to_pylist(), answers, strict=True)], pa.string())


def _language(dialect: str, answer: str | None) -> str | None:
    text = FORMATS[dialect].text(answer) if answer and dialect in FORMATS else None
    return language(text) if text else None


def _joined(known: pa.Table, rows: pa.RecordBatch) -> pa.RecordBatch:
    """What the choice knows of some rows, and what the lake has of them, as `ROWS`."""
    found = {name: rows[name] for name in rows.schema.names} | {name: known[name].combine_chunks() for name in _KNOWN}
    for name in _PACKED:
        found[name] = _unpacked(found["turn_id"], found[name], name, ROWS.field(name).type)
    return pa.RecordBatch.from_arrays([found[field.name].cast(field.type) for field in ROWS], schema=ROWS)


def _unpacked(turn_ids: pa.Array, packed: pa.Array, name: str, kind: pa.ListType) -> pa.Array:
    """Packed little-endian values of four bytes as a list array over the same memory."""
    blob = packed.cast(pa.large_binary())
    _, positions, data = blob.buffers()
    at = np.frombuffer(positions, np.int64, len(blob) + 1, blob.offset * 8)
    torn = np.diff(at) % 4 != 0
    if torn.any():
        turns = ", ".join(turn_ids.filter(pa.array(torn)).to_pylist()[:10])
        raise DatasetError(f"{name} of these turns are no whole number of 4-byte values, the lake is damaged: {turns}")
    first, size = int(at[0]), int(at[-1] - at[0])
    values = pa.Array.from_buffers(kind.value_type, size // 4, [None, data.slice(first, size)])
    return pa.ListArray.from_arrays(pa.array((at - first) // 4, pa.int32()), values, type=kind)
