"""An engine's child process ends with whoever started it, and with all that it started itself."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PARENT = """
import asyncio, os
from serving.engines.child import Child
async def main():
    child = await Child.start(["/bin/sh", "-c", "sleep 600 & sleep 600"], os.environ)
    print(child.pid, flush=True)
    await child.wait()
    print("ended", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def group(pid: int) -> list[int]:
    """The living processes of a group."""
    listing = subprocess.run(["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


@pytest.mark.parametrize("killed", ["parent", "child"])
async def test_kill_9_of_the_agent_or_of_the_first_process_leaves_nothing_behind(killed: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        async with asyncio.timeout(30):
            while len(group(pid)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            os.kill(parent.pid if killed == "parent" else pid, signal.SIGKILL)
            while group(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
