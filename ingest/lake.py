"""The lake: Delta tables `turns`, `feedback`, `erasures`, `rejects`, in folders of these names.

Columns are the fields of the events of the same name, flat: packed arrays stay binary (`ingest.contracts.arrays`),
spans are a list of structs, sampling is JSON text, times are Unix seconds. Every row has `spool_id` and `sequence`, its
identity on the log, and `landed_at`.

How far a table has got is in the table: the spool id is a Delta application id, the sequence its version.
`turns` is committed last, so what it says is true of all.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

TURNS, FEEDBACK, ERASURES, REJECTS = "turns", "feedback", "erasures", "rejects"

_S, _F, _I = pa.string(), pa.float64(), pa.int32()
_PLACE = {"spool_id": _S, "sequence": pa.int64(), "landed_at": _F}
_SPANS = pa.list_(pa.struct({"version": _S, "start": _I, "end": _I}))

SCHEMAS: dict[str, pa.Schema] = {
    TURNS: pa.schema(
        {"schema": _I, "turn_id": _S, "sample": _I, "policy": _S, "dialect": _S, "key_id": _S, "subject": _S}
        | {"session_id": _S, "prefix_hashes": pa.list_(_S)}
        | {"prompt_ids": pa.binary(), "output_ids": pa.binary(), "logprobs": pa.binary(), "weight_versions": _SPANS}
        | {"sampling": _S, "finish": _S, "engine_id": _S, "engine_build": _S, "arm": _S, "experiment": _S}
        | {"started_at": _F, "first_token_at": _F, "finished_at": _F, "request": _S, "answer": _S}
        | {"trainable": pa.bool_(), "untrainable_reason": _S}
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
    REJECTS: pa.schema({"reason": _S, "size": pa.int64(), "sha256": _S} | _PLACE),
}
"""Table → its Arrow schema. A reject keeps no payload: it stays on the log until retention."""


def open_table(lake: Path, name: str) -> DeltaTable:
    """The table at its newest version; created where it does not exist yet."""
    path = lake / name
    if not DeltaTable.is_deltatable(str(path)):
        path.mkdir(parents=True, exist_ok=True)
        try:
            return DeltaTable.create(path, schema=SCHEMAS[name], mode="error")
        except DeltaError:
            if not DeltaTable.is_deltatable(str(path)):  # not even by another process, just now
                raise
    return DeltaTable(path)


def read(lake: Path, name: str, version: int | None = None) -> pyarrow.dataset.Dataset:
    """A table as an Arrow dataset, which DuckDB and polars scan in place; empty where nothing was landed yet."""
    if version is None:
        return open_table(lake, name).to_pyarrow_dataset()
    return DeltaTable(lake / name, version=version).to_pyarrow_dataset()


def counts(lake: Path) -> dict[str, int]:
    """Rows of each table."""
    return {name: read(lake, name).count_rows() for name in SCHEMAS}


def landed(lake: Path, spool_ids: Iterable[str]) -> dict[str, int]:
    """Spool id → the last sequence that is in the lake with everything before it; 0 where nothing is."""
    turns = open_table(lake, TURNS)
    return {spool_id: turns.transaction_version(spool_id) or 0 for spool_id in spool_ids}
