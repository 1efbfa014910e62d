"""What a search for somebody who was forgotten looks like: every file below a folder, as it lies and as it is read.

And the workers of a forgetting that is looked at.
"""

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines.workers import plain


class Inline:
    """Workers that work in this process; what they give back went through JSON, as from the real ones."""

    def call(self, family: str, target: str, **arguments: Any) -> Any:
        module, name = target.split(":")
        return plain(getattr(importlib.import_module(module), name)(**arguments))


def mentions(root: Path, words: Collection[str]) -> set[tuple[str, str]]:
    """(file, word) of each of these words in a file below `root`: in its bytes, or in what Parquet packs."""
    found = set()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        try:
            seen = path.read_bytes()
        except FileNotFoundError:  # SQLite's, of a connection that was closed just now
            continue
        if seen[:4] == b"PAR1":
            seen += repr(pq.read_table(path, partitioning=None).to_pylist()).encode()
        found |= {(path.relative_to(root).as_posix(), word) for word in words if word.encode() in seen}
    return found
