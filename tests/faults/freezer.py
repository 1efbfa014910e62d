"""One that freezes datasets, as a process, and accepts each, as a gate does that lets all pass.

    python -m tests.faults.freezer LAKE DATASETS

Killed between the two acts, it goes on with the candidate that it finds, as a run of the loop does.
"""

import signal
import sys
import threading
import time
from pathlib import Path

from benchmarks.engine import MODEL
from ingest.config import AttributionSettings, DatasetSettings, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST
from ingest.freeze import freeze

ATTRIBUTION = AttributionSettings(fresh_seconds=1e9, history_seconds=1e9)
"""Clocks jump by days here: no turn is too old for that."""


def main() -> None:
    """Until SIGTERM."""
    lake, datasets = Path(sys.argv[1]), Path(sys.argv[2])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(0.5):
        name = next(n for n in (f"d{at:06d}" for at in range(10**6)) if not (datasets / MODEL / n / MANIFEST).exists())
        report = freeze(
            lake=lake,
            datasets=datasets,
            policy=MODEL,
            dataset_id=name,
            settings=DatasetSettings(max_turns=500),
            attribution=ATTRIBUTION,
            rewards=RewardSettings(),
            now=time.time(),
            watermark=0.0,
        )
        folder = datasets / MODEL / name
        write_manifest(folder, read_manifest(folder, DatasetManifest, CANDIDATE))
        print(name, report.rows, flush=True)


if __name__ == "__main__":
    main()
