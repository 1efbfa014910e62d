"""Events that the broker refused, as they stand beside the spools."""

import os
import time
from pathlib import Path

from ingest.refused import Refused, forget_refused, refused_files, set_aside


def test_an_erasure_leaves_nothing_half_written_beside_the_spools(tmp_path: Path) -> None:
    kept = set_aside(tmp_path, Refused("s", 7, "RecordTooLarge", 0.0, b"what somebody said"))
    left = kept.with_name(f".{kept.name}.17.partial")
    left.write_bytes(b"what somebody s")
    assert forget_refused(tmp_path, lambda payload: False) == 0
    assert left.exists(), "its writer may be at it still"
    os.utime(left, (time.time() - 3600,) * 2)
    assert forget_refused(tmp_path, lambda payload: False) == 0
    assert (refused_files(tmp_path), left.exists()) == ([kept], False)
    assert forget_refused(tmp_path, lambda payload: True) == 1
    assert list(kept.parent.iterdir()) == []
