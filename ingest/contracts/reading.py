"""Who is reading a dataset now: a shared lock on its folder, which the kernel lets go of when its reader dies.

A trainer holds it from before it reads the manifest until its checkpoint is complete. An erasure replaces the manifest
first and looks for readers then: whoever it finds may have the rows of before, whoever comes later has the successor's.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingest.contracts.errors import ContractError


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """The folder has a reader meanwhile. Raises `ContractError` where there is no such folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ContractError(f"there is no folder {folder} to read ({error.strerror})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def has_reader(folder: Path) -> bool:
    """Whether somebody on this machine is reading it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
