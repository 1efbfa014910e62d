"""kill -9 of a process that writes a spool: all that it acknowledged is read back, once and in order."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.contracts.events import decode_event
from ingest.spool import Spool, adopt, folders, read_segment

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
        [sequence] = spool.append_sync([Erasure(erasure_id=name, target="subject", digest="s", requested_at=1.0)])
        sys.stdout.write(f"{sequence} {name}\\n"); sys.stdout.flush()
        i += 1
for thread in range(8):
    threading.Thread(target=work, args=(thread,)).start()
threading.Event().wait()
"""


_DIES = """
import os, signal, time
from ingest.spool.segment import ActiveSegment
write, calls = ActiveSegment.write, 0
def dying(self, *rows):
    global calls
    calls += 1
    if calls == 40 and "{when}" == "before":
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *rows)
    if calls == 40:
        os.kill(os.getpid(), signal.SIGKILL)
ActiveSegment.write = dying
"""


def lines_of(process: subprocess.Popen, kill_after: int | None) -> tuple[str, dict[int, str]]:
    """The writer's spool id and what it acknowledged, until it dies; killed after so many acknowledgements."""
    assert process.stdout is not None
    spool_id = process.stdout.readline().strip()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if len(lines) == kill_after:
            process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    whole = [line.split() for line in lines if line.endswith("\n") and len(line.split()) == 2]
    return spool_id, {int(sequence): name for sequence, name in whole}


def assert_all_there(root: Path, spool_id: str, acknowledged: dict[int, str]) -> None:
    """The spool is adopted once, and has every acknowledged event once, in order, in sealed segments."""
    assert adopt(root) == [spool_id]
    assert adopt(root) == []
    [folder] = folders(root)
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


def test_kill_9_at_random_loses_nothing_that_was_acknowledged(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    spool_id, acknowledged = lines_of(process, kill_after=1500)
    assert len(acknowledged) >= 1490
    assert_all_there(tmp_path, spool_id, acknowledged)


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_9_around_a_commit_loses_nothing_that_was_acknowledged(tmp_path: Path, when: str):
    code = _DIES.replace("{when}", when) + _WRITER
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    spool_id, acknowledged = lines_of(process, kill_after=None)
    assert acknowledged
    assert_all_there(tmp_path, spool_id, acknowledged)


def test_a_living_spool_is_not_adopted(tmp_path: Path):
    spool = Spool.open(tmp_path)
    code = "import sys; from pathlib import Path; from ingest.spool import adopt; print(adopt(Path(sys.argv[1])))"
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
    spool.close()
