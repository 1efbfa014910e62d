"""How many bytes the spools of a machine may still take: one bound for all of them, and the disk's own.

Other processes add to the spools and the forwarder takes from them, so the bytes are counted every two seconds;
between two counts, what this process adds is known exactly.
"""

import os
import threading
from pathlib import Path

from ingest.spool.errors import SpoolFull
from ingest.spool.folder import SpoolFolder

_DISK_RESERVE = 256 << 20
"""Bytes of the disk that the spools leave to others."""


class Room:
    """The bound of all the spools below `root`, as one of their writers knows it."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._added = 0
        self._counted = 0
        self._disk = 0
        self.count()

    @property
    def used(self) -> int:
        """Bytes below the root."""
        return self._counted + self._added

    @property
    def left(self) -> int:
        """Bytes that still fit."""
        return max(0, min(self.max_bytes - self.used, self._disk - self._added))

    def take(self, size: int) -> None:
        """Raises `SpoolFull` where `size` bytes do not fit."""
        with self._lock:
            if size > self.left:
                raise SpoolFull(
                    f"{size} bytes do not fit: the spools below {self._root} hold {self.used} bytes of "
                    f"{self.max_bytes}, {self.left} are left; start the forwarder, land and retain, or raise the bound"
                )
            self._added += size

    def give_back(self, size: int) -> None:
        """What was taken and will not be written."""
        with self._lock:
            self._added -= size

    def count(self) -> None:
        """Looks at the disk. Raises `OSError`."""
        added = self._added  # what comes while it looks is kept on top
        counted = sum(SpoolFolder(path).size() for path in self._root.iterdir() if path.is_dir())
        disk = os.statvfs(self._root)
        with self._lock:
            self._counted = counted
            self._added -= added
            self._disk = disk.f_bavail * disk.f_frsize - _DISK_RESERVE
