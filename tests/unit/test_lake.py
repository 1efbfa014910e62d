"""How the lake's tables are read."""

from pathlib import Path

import pyarrow.fs

from ingest.lake import TURNS, read
from tests.lakes import land, turn


def test_arrow_reads_a_tables_files_itself(tmp_path: Path) -> None:
    """Files that Python reads in Arrow's threads abort a process that ends meanwhile: in some runs only, under load."""
    lake = tmp_path / "a lake of ours"
    land(lake, TURNS, turn("a"))
    found = read(lake, TURNS)
    assert found.to_table(columns=["turn_id"])["turn_id"].to_pylist() == ["a"]
    assert not isinstance(found.filesystem, pyarrow.fs.PyFileSystem)
