"""The lake: Delta tables `turns`, `feedback`, `erasures`, `rejects`, in folders of these names below its place.

Columns are the fields of the events of the same name, flat: packed arrays stay binary (`ingest.contracts.arrays`),
spans are a list of structs, sampling is JSON text, times are Unix seconds. Turns have the columns of
`ingest.derived.Derived` beside them. Every row has `spool_id` and `sequence`, its identity on the log, and `landed_at`.

How far a table has got is in the table: the spool id is a Delta application id, the sequence its version.
`turns` is committed last, so what it says is true of all. Beside them stands `watermarks` (`ingest.watermarks`).
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import LocalFileSystem, S3FileSystem, SubTreeFileSystem

from ingest.config import LakePlace

TURNS, FEEDBACK, ERASURES, REJECTS = "turns", "feedback", "erasures", "rejects"
WATERMARKS = "watermarks"

_OPENINGS = 10

SPOOL_LIFE_DAYS = 366
"""The number of a spool is remembered for so long after its last event, and the log's retention on top."""
_CONFIGURATION = {
    "delta.setTransactionRetentionDuration": f"interval {SPOOL_LIFE_DAYS + 34} days",
    "delta.logRetentionDuration": "interval 31 days",
}

_S, _F, _I = pa.string(), pa.float64(), pa.int32()
_PLACE = {"spool_id": _S, "sequence": pa.int64(), "landed_at": _F}
_SPANS = pa.list_(pa.struct({"version": _S, "start": _I, "end": _I}))

_DERIVED = {"prompt_digest": pa.binary(), "output_tokens": _I, "answer_hash": _S, "parent_hash": _S, "metadata": _S}
_TAIL = {"calls": _S, "tail_said": _S, "tail_failed": pa.bool_(), "tail_results": pa.list_(_S)}

SCHEMAS: dict[str, pa.Schema] = {
    TURNS: pa.schema(
        {"schema": _I, "turn_id": _S, "sample": _I, "policy": _S, "dialect": _S, "key_id": _S, "subject": _S}
        | {"session_id": _S, "prefix_hashes": pa.list_(_S)}
        | {"prompt_ids": pa.binary(), "output_ids": pa.binary(), "logprobs": pa.binary(), "weight_versions": _SPANS}
        | {"sampling": _S, "finish": _S, "engine_id": _S, "engine_build": _S, "arm": _S, "experiment": _S}
        | {"started_at": _F, "first_token_at": _F, "finished_at": _F, "request": _S, "answer": _S}
        | {"trainable": pa.bool_(), "untrainable_reason": _S}
        | _DERIVED
        | _TAIL
        | _PLACE
    ),
    FEEDBACK: pa.schema(
        {"schema": _I, "feedback_id": _S, "target": _S, "target_id": _S, "sample": _I, "kind": _S, "value": _F}
        | {"text": _S, "source": _S, "key_id": _S, "subject": _S, "occurred_at": _F, "received_at": _F}
        | _PLACE
    ),
    ERASURES: pa.schema(
        {"schema": _I, "erasure_id": _S, "target": _S, "digest": _S, "requested_at": _F} | _PLACE,
    ),
    REJECTS: pa.schema({"reason": _S, "payload": pa.binary(), "about": pa.list_(_S), "reader": _S} | _PLACE),
    WATERMARKS: pa.schema(
        {"topic": _S, "partition": _I, "spool_id": _S, "at": _F, "closed": pa.bool_(), "landed_at": _F},
    ),
}
"""Table → its Arrow schema.

A reject keeps its bytes, and in `about` the `erasure_digest` of everybody whom they name, as far as they can be read.
`reader` is the code that could not read them (`ingest.rows.READER`). `watermarks` is Kafka's (`ingest.watermarks`).
"""


class LakeError(Exception):
    """The lake cannot be used as it is: says why and what to do."""


def table_uri(lake: LakePlace, name: str) -> str:
    """Where the table is: a path, or a URL."""
    return f"{lake}/{name}"


def exists(lake: LakePlace, name: str) -> bool:
    """Whether anybody made the table. Raises `LakeError` where its store cannot be asked."""
    try:
        return DeltaTable.is_deltatable(table_uri(lake, name))
    except OSError as error:
        # Its words are not passed on: some stores quote the whole request in their refusal, the key's id included.
        code = re.search(r"<Code>(\w+)</Code>", str(error))
        if code and code[1] == "NoSuchBucket":
            raise LakeError(
                f"the lake {lake} cannot be reached: its store has no bucket of this name. Make it there, or name "
                "another in [lake] path; a store that is not Amazon's is named by AWS_ENDPOINT_URL"
            ) from None
        raise LakeError(
            f"the lake {lake} cannot be reached: {code[1] if code else 'no answer'}. The environment of every process "
            "must have its store's credentials (of S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and "
            "AWS_ENDPOINT_URL where it is not Amazon's)"
        ) from None


def open_table(lake: LakePlace, name: str) -> DeltaTable:
    """The table at its newest version; created where it does not exist yet.

    Raises `LakeError` where another version of everloop made it, or its store cannot be reached."""
    where = table_uri(lake, name)
    if not exists(lake, name):
        try:
            numbers = [field.name for field in SCHEMAS[name] if pa.types.is_primitive(field.type)]
            # Statistics are in the log: of numbers only, or it would keep what people wrote, and their names.
            configuration = _CONFIGURATION | {"delta.dataSkippingStatsColumns": ",".join(numbers)}
            return DeltaTable.create(where, schema=SCHEMAS[name], mode="error", configuration=configuration)
        except DeltaError:
            if not exists(lake, name):  # not even by another process, just now
                raise
    table = newest(where)
    missing = set(SCHEMAS[name].names) - {field.name for field in table.schema().fields}
    if missing:
        raise LakeError(
            f"the table {where} has no {', '.join(sorted(missing))}: another version of everloop made it, and everloop "
            "converts no lake yet; start a new one in another place"
        )
    return table


def newest(where: str) -> DeltaTable:
    """The table at its newest version. An erasure may clear the log between a reader's look and the reading: then once
    more."""
    for _ in range(_OPENINGS):
        with contextlib.suppress(DeltaError):
            return DeltaTable(where)
        time.sleep(0.02)
    return DeltaTable(where)


def at_version(lake: LakePlace, name: str, version: int) -> DeltaTable:
    """The table as it was. Raises `DeltaError` or `OSError` where that version is gone."""
    return DeltaTable(table_uri(lake, name), version=version)


def files(table: DeltaTable) -> DeltaStorageHandler:
    """The table's files, wherever they are, by paths below its folder. For this thread only: see `dataset`."""
    return DeltaStorageHandler(table.table_uri)


def read(lake: LakePlace, name: str, version: int | None = None) -> pyarrow.dataset.Dataset:
    """A table as an Arrow dataset, which DuckDB and polars scan in place; empty where nothing was landed yet."""
    return dataset(open_table(lake, name) if version is None else at_version(lake, name, version))


def dataset(table: DeltaTable) -> pyarrow.dataset.Dataset:
    """What a snapshot holds.

    Arrow reads the files itself. By default delta-rs gives it an object of Python's to read them with, and a thread of
    Arrow's that lets go of one while the interpreter ends aborts the process: under load, one short command in four.
    Of object stores this is done for S3.
    """
    kind, _, folder = table.table_uri.partition("://")
    if kind == "file":
        return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(unquote(folder), LocalFileSystem()))
    if kind == "s3":  # what Arrow does not find in the environment by itself
        named = {"endpoint_override": "AWS_ENDPOINT_URL", "region": "AWS_REGION"}
        given = {option: os.environ[name] for option, name in named.items() if name in os.environ}
        return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(unquote(folder), S3FileSystem(**given)))
    return table.to_pyarrow_dataset()


def counts(lake: LakePlace) -> dict[str, int]:
    """Rows of each table."""
    return {name: read(lake, name).count_rows() for name in SCHEMAS}


def landed(lake: LakePlace, spool_ids: Iterable[str]) -> dict[str, int]:
    """Spool id → the last sequence that is in the lake with everything before it; 0 where nothing is."""
    turns = open_table(lake, TURNS)
    return {spool_id: turns.transaction_version(spool_id) or 0 for spool_id in spool_ids}
