"""The log of one machine: the spools themselves.

A pass adopts dead spools, asks for the low watermark, and then reads sealed segments, one spool after the other. It
removes nothing: `retain` does, by age, and only what was landed.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ingest.contracts.events import Record
from ingest.log import BATCH_BYTES, BATCH_RECORDS
from ingest.spool import SegmentUnavailable, SpoolFolder, adopt, folders, let_go, low_watermark

log = logging.getLogger(__name__)


class EmbeddedLog:
    """A `LogReader` of the spools below `root`."""

    lost = 0  # retention removes only what was landed

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watermark = 0.0

    def batches(self, after: Callable[[str], int]) -> Iterator[list[Record]]:
        """See `LogReader`. A batch may span spools."""
        adopt(self._root)
        watermark = low_watermark(self._root)
        batch: list[Record] = []
        size = 0
        complete = True
        for folder in folders(self._root):
            try:
                for record in records_of(folder, after(folder.spool_id)):
                    batch.append(record)
                    size += len(record.payload)
                    if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                        yield batch
                        batch, size = [], 0
            except SegmentUnavailable as error:
                log.error("spool %s is read no further in this pass: %s", folder.spool_id, error)
                complete = False
        if batch:
            yield batch
        self._watermark = watermark if complete else 0.0

    def watermark(self) -> float:
        """See `LogReader`; 0 where a spool could not be read to its end."""
        return self._watermark

    def living(self) -> list[str]:
        """See `LogReader`."""
        return [folder.spool_id for folder in folders(self._root)]


def records_of(folder: SpoolFolder, after: int) -> Iterator[Record]:
    """A spool's sealed records past `after`. Raises `SegmentUnavailable`."""
    for segment in folder.sealed(after):
        try:
            for sequence, payload in folder.read(segment, after):
                yield Record(folder.spool_id, sequence, payload)
        except SegmentUnavailable:
            if segment.path.exists():
                raise


def retain(root: Path, landed: Mapping[str, int], older_than: float) -> int:
    """Removes segments that were landed and sealed before `older_than` (Unix seconds), and folders that are done with.

    `landed` is spool id → last sequence in the lake. Returns how many segments were removed.
    """
    removed = 0
    for folder in folders(root):
        for segment in folder.sealed():
            if segment.last <= landed.get(folder.spool_id, 0) and os.stat(segment.path).st_mtime < older_than:
                segment.path.unlink()
                removed += 1
        folder.remove_if_done()
    let_go(root, older_than)
    return removed
