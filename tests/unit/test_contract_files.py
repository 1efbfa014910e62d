"""Files that appear whole."""

import os
from pathlib import Path

import pytest

from ingest.contracts.files import write_atomically


def test_a_file_has_its_mode_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, modes = os.replace, []

    def see(partial: Path, path: Path) -> None:
        modes.append(partial.stat().st_mode & 0o777)
        replace(partial, path)

    monkeypatch.setattr(os, "replace", see)
    write_atomically(tmp_path / "secret", b"new", mode=0o600)
    assert modes == [0o600]
    assert (tmp_path / "secret").read_bytes() == b"new"


def test_what_a_killed_writer_left_goes_with_the_next_one_and_what_another_writes_now_stays(tmp_path: Path) -> None:
    left, under_way = tmp_path / ".[a].json.17.partial", tmp_path / ".[a].json.18.partial"
    for path in (left, under_way):
        path.write_bytes(b"half")
    os.utime(left, (left.stat().st_mtime - 3600,) * 2)
    write_atomically(tmp_path / "[a].json", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [under_way.name, "[a].json"]
