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
