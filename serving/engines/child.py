"""A child process that never outlives its parent, with all that it starts itself.

vLLM is three processes or more; killing the first can leave the others with the memory and the port. The child
leads a process group of its own, and a guard, a shell that waits for the end of a pipe, kills that group when this
process ends for whatever reason, kill -9 included: the kernel closes the pipe. PR_SET_PDEATHSIG reaches the first
process only.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

GUARD = 'read -r _; kill -s KILL -- "-$1" 2>/dev/null'


class Child:
    """A running group of processes. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, guard: asyncio.subprocess.Process, pipe: int) -> None:
        self._process = process
        self._guard = guard
        self._pipe = pipe

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> "Child":
        """Starts `command` in a group of its own, and its guard in another."""
        process = await asyncio.create_subprocess_exec(*command, env=environment, start_new_session=True)
        read, write = os.pipe()
        guard = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", GUARD, "guard", str(process.pid), stdin=read, start_new_session=True
        )
        os.close(read)
        return cls(process, guard, write)

    @property
    def pid(self) -> int:
        """Of the first process, which is also the group's id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Of the first process; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Until the first process ends; the rest of its group is ended then, too."""
        code = await self._process.wait()
        await self._end_group()
        return code

    async def stop(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL to the whole group where the first process has not ended in `seconds`."""
        if self._process.returncode is None:
            self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), seconds)
        await self._end_group()
        await self._process.wait()

    async def _end_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        await self._guard.wait()
