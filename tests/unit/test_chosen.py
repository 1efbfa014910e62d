"""The chosen turns come in the order of the dataset, wherever they stand in the lake, and few of them wait."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import chosen
from ingest.chosen import _in_order, _Source, _Waiting
from tests.lakes import feedback, land, turn
from tests.unit.test_datasets import cut, rows

BYTES = 100
"""Of a row."""


@given(st.data(), st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.integers(0, 20))
def test_rows_come_in_order_whatever_the_lake_is_like(
    data: st.DataObject, number: int, groups: int, batch_rows: int, room: int
) -> None:
    places = np.array(data.draw(st.permutations(range(number))))
    held: list[int] = []

    def read(source: _Source) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        for begin in range(0, len(source.places), batch_rows):
            some = source.places[begin : begin + batch_rows]
            filled = pa.array([b"x" * (BYTES - 8)] * len(some), pa.binary(BYTES - 8))
            yield some, pa.RecordBatch.from_pydict({"place": some, "filled": filled})

    class Watched(_Waiting):
        def ready(self) -> Iterator[pa.RecordBatch]:
            held.append(sum(batch.num_rows for batch in self._rows))
            yield from super().ready()

    sources = [_Source(None, np.arange(len(some)), some) for some in np.array_split(places, groups)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen, "_WAITING_BYTES", room * BYTES)
        patch.setattr(chosen, "_Waiting", Watched)
        out = [place for batch in _in_order(sources, read) for place in batch["place"].to_pylist()]
    assert out == list(range(number))
    assert max(held) <= max(room, 1) + batch_rows


def test_turns_of_a_lake_without_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three turns end together, and of each the two samples.
    samples = [(n, sample) for n in range(90) for sample in (0, 1)]
    turns = [turn(f"{n:03}", sample=s, finished_at=100.0 + n // 3, output=[n, s]) for n, s in samples]
    others = [turn(f"other {n}", policy="other", finished_at=100.0 + n) for n in range(20)]
    mixed = random.Random(3).sample([*turns, *others], 200)
    for begin in range(0, len(mixed), 40):
        land(tmp_path, "turns", *mixed[begin : begin + 40])
    land(tmp_path, "feedback", *[feedback(t["turn_id"], sample=t["sample"], received_at=200.0) for t in mixed])
    cut(tmp_path, "d1", max_turns=150)
    assert [(row["turn_id"], row["sample"], *row["output_ids"]) for row in rows(tmp_path, "d1")] == [
        (f"{n:03}", s, n, s) for n, s in samples[-150:]
    ]
    monkeypatch.setattr(chosen, "_WAITING_BYTES", 2000)
    monkeypatch.setattr(chosen, "_READ_ROWS", 7)
    cut(tmp_path, "d1", max_turns=150, datasets="again")
    first, second = (tmp_path / folder / "p" / "d1" / "rows.parquet" for folder in ("datasets", "again"))
    assert first.read_bytes() == second.read_bytes()
