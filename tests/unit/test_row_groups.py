"""The rows file: its row groups have a bound, and the rows alone decide on its bytes."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.datasets import ROWS
from ingest.row_groups import row_groups, write_groups


def dataset(lengths: list[int]) -> pa.Table:
    """A row for each length of a prompt; a token of output each."""
    rows = [
        dict.fromkeys(ROWS.names) | {"turn_id": f"{n}", "prompt_ids": [1] * n, "output_ids": [n], "reward": float(n)}
        for n in lengths
    ]
    return pa.Table.from_pylist(rows, ROWS)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 9))
def test_row_groups_are_the_same_wherever_the_batches_end(lengths: list[int], batch_rows: int) -> None:
    table = dataset(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingest.row_groups._GROUP_ROWS", 5)
        patch.setattr("ingest.row_groups._GROUP_TOKENS", 60)
        patch.setattr("ingest.row_groups._PIECE_ROWS", 3)
        groups = list(row_groups(iter(table.to_batches(batch_rows))))
        others = list(row_groups(iter(table.to_batches())))
    pieces = [[piece.num_rows for piece in group.to_batches()] for group in groups]
    assert pieces == [[piece.num_rows for piece in group.to_batches()] for group in others]
    assert pa.concat_tables([table.slice(0, 0), *groups]).equals(table)
    ends = set()
    for group, sizes in zip(groups, pieces, strict=True):
        begin = max(ends, default=0)
        ends |= {begin + sum(sizes[: n + 1]) for n in range(len(sizes))}
        assert {end for end in range(begin + 1, begin + group.num_rows) if end % 3 == 0} <= ends
    for group in groups[:-1]:
        tokens = pc.sum(pc.list_value_length(group["prompt_ids"])).as_py() + group.num_rows
        assert group.num_rows == 5 or 60 <= tokens <= 60 + 41


def test_a_file_is_the_same_wherever_the_batches_end(tmp_path: Path) -> None:
    # Long enough that a list has more than one page, and a row group more than one piece.
    table = dataset([200] * 5000)
    for name, batch_rows in (("one", 5000), ("other", 777)):
        write_groups(tmp_path / name, row_groups(iter(table.to_batches(batch_rows))))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
