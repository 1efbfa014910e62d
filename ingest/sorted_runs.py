"""How the rows of a table come to lie beside each other: sorted runs, merged in levels.

Each turn of an agent's session repeats the one before and adds to it. What lands together stands together, but a
session goes on for longer than that, and each of its landings has a file of its own. So small files are merged, in the
order of `ORDER`, and the columns that grow with a session are written in Parquet's DELTA_BYTE_ARRAY: a value there is
how much it shares with the one before it, and the rest. A session's prompt is stored once, however long it gets.

A *run* is one or more files that were written in one piece, in order. A file that landing or a deletion wrote is a run
of level 0; `_RUNS` or more of one level become one of the next. So a row is written anew at most `LEVELS` times. Every
row stays whole in its file: an erasure takes rows, and no other row needs them.

A merge reads a slice of each run at a time, whatever their sizes: it takes so many runs as have their pages in
`_OPEN_BYTES` together. It is one commit, which changes no data. Delta refuses it where meanwhile another merge was
committed, a row deleted, or metadata changed (an erasure's fence), and a deletion where it came second: nothing comes
twice, nothing comes back.
"""

import contextlib
import itertools
import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from ingest.contracts.files import sync
from ingest.lake import ERASURES, FEEDBACK, REJECTS, TURNS, WATERMARKS, dataset, newest

LEVELS = 3
ORDER: dict[str, tuple[str, str]] = {
    TURNS: ("session_id", "started_at"),
    FEEDBACK: ("target_id", "received_at"),
    ERASURES: ("spool_id", "sequence"),
    REJECTS: ("spool_id", "sequence"),
    WATERMARKS: ("spool_id", "at"),
}
"""Table → by what its rows are merged, a text; and their order where that is equal."""

_RUNS = 8
"""Fewer of one level are left as they are."""
_OPEN_RUNS, _OPEN_BYTES = 128, 192 << 20
_RUN_BYTES = 1 << 30
"""A merge writes no more: what is half as large stays as it is, whatever its level."""
_FILE_BYTES = 128 << 20
_GROUP_BYTES, _SLICE_BYTES, _SLICE_ROWS = 64 << 20, 1 << 20, 1024
"""Of rows as they are in memory: what a row group of a run holds, and what is read of a run at a time."""
_PAGE_BYTES, _PAGE_ROWS = 8 << 20, 256
"""Readers decode a page at a time: 256 prompts of 50,000 tokens are 50 MB, and a 256th is stored once more."""
_BUFFER_BYTES = 64 << 10

_GROWING = ("prompt_ids", "request")
_LONG = (*_GROWING, "output_ids", "logprobs", "answer", "payload", "text")
_MERGES = "everloop.merges"
"""An application id, which no two commits may have that go through one snapshot. Of itself delta-rs 1.6 lets two merges
of the same files pass, and every row is there twice."""
_NAME = re.compile(r"run-(\d)-([0-9a-f]{32})-\d+\.parquet")


class Run(NamedTuple):
    """Files in their order, with their sizes."""

    level: int
    files: dict[str, int]
    written_at: int

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(self.files.values())


def runs_of(snapshot: DeltaTable) -> list[Run]:
    """The runs of a table, the oldest first."""
    found: dict[str, Run] = {}
    for path, size, written_at in _files(snapshot):
        name = _NAME.fullmatch(path)
        run = found.setdefault(name[2] if name else path, Run(int(name[1]) if name else 0, {}, written_at))
        run.files[path] = size
    return sorted(found.values(), key=lambda run: run.written_at)


def merge(snapshot: DeltaTable, table: str) -> bool:
    """One merge, of the lowest level that is due for it; whether there was one. Ask a new snapshot for the next.

    Raises `DeltaError` or `FileNotFoundError` where another writer came first; what was written is removed then.
    """
    runs = [run for run in runs_of(snapshot) if run.size < _RUN_BYTES // 2]
    for level in range(LEVELS):
        due = [run for run in runs if run.level == level]
        if len(due) >= _RUNS:
            filesystem = dataset(snapshot).filesystem
            _rewrite(snapshot, table, filesystem, _fitting(filesystem, due))
            return True
    return False


def in_order(streams: Iterable[Iterator[pa.Table]], order: tuple[str, str]) -> Iterator[pa.Table]:
    """The rows of all streams, each of which is in order. Of one that is not, every row comes all the same."""
    sort_keys = [(name, "ascending") for name in order]
    waiting = [(rows, stream) for stream in streams if (rows := next(stream, None)) is not None]
    while waiting:
        # Up to here no stream has anything left: the one whose slice ends first gives all of it.
        bound = min(_last(rows, order) for rows, _ in waiting)
        ready, left = [], []
        for rows, stream in waiting:
            past = pc.index(_past(rows, order, bound), True).as_py()
            ready.append(rows if past < 0 else rows.slice(0, past))
            rest = next(stream, None) if past < 0 else rows.slice(past)
            if rest is not None:
                left.append((rest, stream))
        waiting = left
        yield pa.concat_tables(ready).sort_by(sort_keys)


def _last(rows: pa.Table, order: tuple[str, str]) -> tuple[str, float]:
    """Where the last of these rows stands."""
    keys, places = pc.fill_null(rows[order[0]], ""), rows[order[1]]
    last = pc.max(keys).as_py()
    return last, pc.max(places.filter(pc.equal(keys, last))).as_py()


def _past(rows: pa.Table, order: tuple[str, str], bound: tuple[str, float]) -> pa.ChunkedArray:
    """Which rows stand behind it: a session's next landing waits until this one's last slice is given."""
    keys, places = pc.fill_null(rows[order[0]], ""), rows[order[1]]
    return pc.or_(pc.greater(keys, bound[0]), pc.and_(pc.equal(keys, bound[0]), pc.greater(places, bound[1])))


def _files(snapshot: DeltaTable) -> list[tuple[str, int, int]]:
    """Path, size and time of each, in the order of the paths."""
    added = snapshot.get_add_actions(flatten=True)
    columns = (added.column(name).to_pylist() for name in ("path", "size_bytes", "modification_time"))
    return sorted(zip(*columns, strict=True))


def _fitting(filesystem: FileSystem, runs: list[Run]) -> list[Run]:
    """The oldest whose pages and sizes fit, two at least."""
    taken: list[Run] = []
    pages = size = 0
    for run in runs[:_OPEN_RUNS]:
        pages += max(_open_bytes(filesystem, path) for path in run.files)
        size += run.size
        if len(taken) >= 2 and (pages > _OPEN_BYTES or size > _RUN_BYTES):
            break
        taken.append(run)
    return taken


def _open_bytes(filesystem: FileSystem, path: str) -> int:
    """What a file takes while it is read: a page of each column, and a slice."""
    with _opened(filesystem, path) as file:
        metadata = file.metadata
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = ([group.column(at) for at in range(metadata.num_columns)] for group in groups)
    pages = (sum(min(column.total_uncompressed_size, _PAGE_BYTES) for column in group) for group in columns)
    return max(pages, default=0) + _SLICE_BYTES


def _rewrite(snapshot: DeltaTable, table: str, filesystem: FileSystem, runs: list[Run]) -> None:
    schema = pa.schema(snapshot.schema().to_arrow())
    streams = [_slices(filesystem, run, schema) for run in runs]
    written: list[str] = []
    committing = False
    try:
        _write(filesystem, written, runs[0].level + 1, schema, _groups(in_order(streams, ORDER[table])))
        _sync(filesystem, written)
        added = [_added(filesystem, path, schema) for path in written]
        gone = [
            RemoveAction(path, data_change=False, deletion_timestamp=_now(), size=size)
            for run in runs
            for path, size in run.files.items()
        ]
        one_at_a_time = CommitProperties(app_transactions=[Transaction(_MERGES, snapshot.version() + 1, _now())])
        committing = True
        snapshot.create_write_transaction(
            [*added, *gone], mode="append", schema=snapshot.schema(), commit_properties=one_at_a_time
        )
    except Exception as error:
        # Of a commit that ended otherwise than by refusal nobody knows yet whether it is there: vacuum will.
        if not committing or isinstance(error, CommitFailedError):
            _remove(snapshot, filesystem, written)
        raise


def _sync(filesystem: FileSystem, written: list[str]) -> None:
    """A machine that goes down must not keep the commit alone: the log may not have these rows any more."""
    if isinstance(filesystem, SubTreeFileSystem) and isinstance(filesystem.base_fs, LocalFileSystem):
        folder = Path(filesystem.base_path)
        for path in (*written, "."):
            sync(folder / path)


def _remove(snapshot: DeltaTable, filesystem: FileSystem, written: list[str]) -> None:
    """What a commit names stays, even one that failed once it was there."""
    for path in set(written) - {named for named, _, _ in _files(newest(snapshot.table_uri))}:
        with contextlib.suppress(FileNotFoundError):  # an erasure was quicker
            filesystem.delete_file(path)


def _slices(filesystem: FileSystem, run: Run, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a run, a slice at a time."""
    for path in run.files:
        with _opened(filesystem, path) as file:
            for at in range(file.num_row_groups):
                group = file.metadata.row_group(at)
                # In a run's own files, what values share takes no room, but memory.
                size = _GROUP_BYTES if run.level else group.total_byte_size
                rows = min(group.num_rows * _SLICE_BYTES // max(size, 1) + 1, _SLICE_ROWS)
                for batch in file.iter_batches(rows, row_groups=[at], use_threads=False):
                    yield pa.Table.from_batches([batch]).cast(schema)


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of `_GROUP_BYTES`."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _write(
    filesystem: FileSystem, written: list[str], level: int, schema: pa.Schema, groups: Iterator[pa.Table]
) -> None:
    """Writes a run of these row groups; `written` names each file from its beginning."""
    run = uuid.uuid4().hex
    short = [name for name in schema.names if name not in _LONG]
    for number, first in enumerate(groups):
        written.append(f"run-{level}-{run}-{number:04}.parquet")
        with (
            filesystem.open_output_stream(written[-1]) as sink,
            pq.ParquetWriter(
                sink,
                schema,
                compression="zstd",
                compression_level=3,
                use_dictionary=short,
                column_encoding={name: "DELTA_BYTE_ARRAY" for name in _GROWING if name in schema.names},
                write_statistics=short,
                data_page_size=_PAGE_BYTES,
                max_rows_per_page=_PAGE_ROWS,
                write_batch_size=_PAGE_ROWS,
            ) as writer,
        ):
            for group in itertools.chain([first], groups):
                writer.write_table(group, group.num_rows)
                if sink.tell() >= _FILE_BYTES:
                    break


def _added(filesystem: FileSystem, path: str, schema: pa.Schema) -> AddAction:
    """A file as the log names it, with statistics of its numbers (why of those alone: `ingest.lake.open_table`)."""
    with _opened(filesystem, path) as file:
        metadata = file.metadata
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    told: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for at in range(metadata.num_columns):
        name = groups[0].column(at).path_in_schema
        if name not in schema.names or not pa.types.is_primitive(schema.field(name).type):
            continue
        seen = [group.column(at).statistics for group in groups]
        told["nullCount"][name] = sum(each.null_count for each in seen)
        if all(each.has_min_max for each in seen):
            told["minValues"][name] = min(each.min for each in seen)
            told["maxValues"][name] = max(each.max for each in seen)
    return AddAction(path, filesystem.get_file_info(path).size, {}, _now(), False, json.dumps(told))


@contextlib.contextmanager
def _opened(filesystem: FileSystem, path: str) -> Iterator[pq.ParquetFile]:
    with filesystem.open_input_file(path) as source:
        yield pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _now() -> int:
    return int(time.time() * 1000)
