"""kill -9 of a process that writes a spool: all that it acknowledged is read back, once and in order."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.contracts.events import decode_event
from ingest.spool import adopt, folders, read_segment

pytestmark = pytest.mark.integration

_WRITER = """
import sys, threading
from pathlib import Path
from ingest.contracts.erasure import Erasure
from ingest.spool import Spool
spool = Spool.open(Path(sys.argv[1]), segment_bytes=20_000, segment_seconds=0.2)
print(spool.spool_id, flush=True)
def work(thread):
    i = 0
    while True:
        name = f"{thread}-{i}"
        [sequence] = spool.append_sync([Erasure(erasure_id=name, target="subject", target_id="s", requested_at=1.0)])
        sys.stdout.write(f"{sequence} {name}\\n"); sys.stdout.flush()
        i += 1
for thread in range(8):
    threading.Thread(target=work, args=(thread,)).start()
threading.Event().wait()
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    spool_id = process.stdout.readline().strip()
    lines = [process.stdout.readline() for _ in range(1500)]
    assert adopt(tmp_path) == [], "a living spool is not adopted"
    process.send_signal(signal.SIGKILL)
    lines += [line for line in process.stdout if line.endswith("\n")]
    process.wait()
    process.stdout.close()
    acknowledged = {}
    for line in lines:
        parts = line.split()
        if len(parts) == 2:
            acknowledged[int(parts[0])] = parts[1]

    assert adopt(tmp_path) == [spool_id]
    assert adopt(tmp_path) == []
    [folder] = folders(tmp_path)
    found = [
        (sequence, decode_event(payload).erasure_id)  # type: ignore[union-attr]
        for segment in folder.sealed()
        for sequence, payload in read_segment(segment.path)
    ]
    assert folder.closed()
    assert not list(folder.path.glob("active-*"))
    assert len({sequence for sequence, _ in found}) == len(found)
    assert found == sorted(found)
    assert acknowledged.items() <= dict(found).items()
