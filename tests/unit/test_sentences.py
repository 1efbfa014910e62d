"""What a command says of files that were damaged and of times that no calendar has, and on a narrow terminal."""

import math
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.cli.output import print_table, sentence, when
from tests.lakes import land, turn


def said(error: Exception) -> str:
    found = sentence(error)
    assert found is not None
    assert "\n" not in found
    assert "docs/lake.md" in found
    return found


def test_a_damaged_file_is_a_sentence_with_its_name(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    (file,) = (tmp_path / "turns").glob("**/*.parquet")
    file.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(duckdb.Error) as by_duckdb:
        duckdb.sql(f"SELECT * FROM read_parquet('{file}')").fetchall()
    assert file.name in said(by_duckdb.value)
    with pytest.raises(Exception, match="Parquet") as by_arrow:
        pq.read_table(file)
    said(by_arrow.value)
    newest = max((tmp_path / "turns" / "_delta_log").glob("*.json"))
    newest.write_text("{")
    with pytest.raises(Exception) as by_delta:  # noqa: PT011 - whatever delta-rs raises
        DeltaTable(tmp_path / "turns")
    said(by_delta.value)


def test_a_fault_of_the_program_is_none() -> None:
    assert sentence(ValueError("of our own doing")) is None


@pytest.mark.parametrize("seconds", [1e18, -1e18, math.inf, math.nan])
def test_a_time_that_no_calendar_has_is_its_number(seconds: float) -> None:
    assert when(seconds) == str(seconds)


@pytest.mark.parametrize("time", ["nan", "inf", "soon"])
def test_what_is_no_time_is_refused(time: str) -> None:
    done = CliRunner().invoke(app, ["log", "seek", "--time", time])
    assert (done.exit_code, f'"{time}" is no time' in done.stderr) == (2, True)


@pytest.mark.parametrize(("width", "lines"), [(80, 14), (200, 3)])
def test_on_a_narrow_terminal_a_wide_table_is_a_block_a_row_and_ids_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, lines: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    ids = [f"chatcmpl-{letter * 32}" for letter in "abc"]
    print_table(("turn", "child", "parent", "reward", "weight", "versions"), [(*ids, 1, None, "base")] * 2)
    printed = capsys.readouterr().out
    assert printed.count("\n") == lines
    assert all(printed.count(name) == 2 for name in ids), printed
