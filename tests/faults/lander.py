"""A lander, as a process: it lands for ever. `python -m tests.faults.lander SPOOL LAKE LOG-SETTINGS`

What cannot be done now is said and tried again, as a run of the loop does; anything else ends it, and is counted.
"""

import signal
import sys
import threading
from pathlib import Path

from ingest.config import LakeSettings, LogSettings
from ingest.land import LandError, land
from ingest.log import LogError


def main() -> None:
    """Until SIGTERM, and then to the end of its pass."""
    spool, lake, settings = Path(sys.argv[1]), Path(sys.argv[2]), LogSettings.model_validate_json(sys.argv[3])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(0.2):
        try:
            report = land(log=settings, spool=spool, lake=lake, settings=LakeSettings(upkeep_seconds=10))
        except (LandError, LogError) as error:
            print(f"later: {error}", flush=True)
        else:
            print(report.rows, flush=True)
            assert not report.lost, f"{report.lost} events were given up"


if __name__ == "__main__":
    main()
