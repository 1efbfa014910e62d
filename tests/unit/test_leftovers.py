"""Ids in files of text: overwritten in place, whoever writes to the file or replaces it meanwhile."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ingest.contracts.erasure import erasure_digest
from pipelines import leftovers
from pipelines.errors import PipelineError
from pipelines.leftovers import clean_control, clean_runs, overwrite

ANNA, BEN = "a" * 32, "b" * 32
GOAL = {erasure_digest("subject", ANNA): "subject"}


def test_an_id_is_crossed_out_and_the_rest_stays(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f'{{"subject": "{ANNA}"}} {BEN} {ANNA}\n')
    with log.open("a") as writer:
        assert overwrite([log, tmp_path / "gone"], GOAL) == 2
        writer.write("written on\n")
    assert log.read_text() == f'{{"subject": "{"x" * 32}"}} {BEN} {"x" * 32}\nwritten on\n'


def test_a_file_that_is_replaced_meanwhile_is_not_damaged_and_cleaned_as_well(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(f'["{BEN}", "{ANNA}"]')
    asked: list[object] = []

    class Replacing(dict[str, str]):
        """A goal at whose second round of questions, the file being open, the gateway writes a shorter snapshot."""

        def __contains__(self, key: object) -> bool:
            asked.append(key)
            if key == asked[0] and asked.count(key) == 2:
                (tmp_path / "next").write_text(f'["{ANNA}"]')
                os.replace(tmp_path / "next", snapshot)
            return super().__contains__(key)

    assert overwrite([snapshot], Replacing(GOAL)) == 2
    assert snapshot.read_text() == f'["{"x" * 32}"]'


def test_an_opt_out_goes_beside_a_control_that_runs_and_waits_for_one_that_reads_or_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_BUSY_SECONDS", 0.1)
    path = tmp_path / "control.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as control:
        control.execute("PRAGMA journal_mode=WAL")
        control.execute("CREATE TABLE opted_out (subject TEXT PRIMARY KEY, since REAL)")
        control.execute("CREATE TABLE revision (value INTEGER)")
        control.execute("INSERT INTO revision VALUES (7)")
        control.executemany("INSERT INTO opted_out VALUES (?, 1.0)", [(ANNA,), (BEN,)])
        assert clean_control(path, GOAL) == 1
        assert control.execute("SELECT subject, value FROM opted_out, revision").fetchall() == [(BEN, 8)]
        assert not any(ANNA.encode() in file.read_bytes() for file in tmp_path.iterdir())
        control.execute("BEGIN")
        control.execute("SELECT * FROM opted_out").fetchone()
        with pytest.raises(PipelineError, match="cannot be cleaned now"):
            clean_control(path, GOAL)
        control.execute("ROLLBACK")
        control.execute("BEGIN IMMEDIATE")
        with pytest.raises(PipelineError, match="cannot be cleaned now: database is locked"):
            clean_control(path, {erasure_digest("subject", BEN): "subject"})


def test_what_a_run_notes_while_its_database_is_cleaned_waits_and_is_not_undone(tmp_path: Path) -> None:
    path = tmp_path / "pipelines.db"
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as runs:
        runs.execute("PRAGMA journal_mode=WAL")
        runs.execute("CREATE TABLE runs (reason TEXT)")
        runs.execute("CREATE TABLE stages (result TEXT, progress TEXT, error TEXT)")
        runs.execute("INSERT INTO stages VALUES ('', '', ?)", (f"turn {ANNA} is none",))

        class Noting(dict[str, str]):
            """A goal at whose questions a stage notes its error."""

            def __contains__(self, key: object) -> bool:
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    runs.execute("UPDATE stages SET error = 'of the next attempt'")
                return super().__contains__(key)

        assert clean_runs(path, Noting(GOAL)) == 1
        assert runs.execute("SELECT error FROM stages").fetchall() == [(f"turn {'x' * 32} is none",)]


def test_a_file_that_may_not_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match=f"{tmp_path} cannot be cleaned .Is a directory.: let this user write to it"
    ):
        overwrite([tmp_path], GOAL)
