"""Records by request id: the running ones, to cut or wait for, and the latest finished ones, bounded.

A record travels at the end of its response. Where that was cut (the gateway died, the connection broke), whoever
asks in time gets it here once more. The id is the caller's own `X-Request-Id`, the same for every wire format.
"""

import asyncio
from collections import OrderedDict

from ingest.contracts.tap import encode_tap
from serving.vllm_plugin.tap import Recording


class Records:
    """`limit` finished records and `max_bytes` of them at most; the oldest go first."""

    def __init__(self, limit: int = 1024, max_bytes: int = 64 << 20) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._running: dict[str, Recording] = {}
        self._cut: OrderedDict[str, bool] = OrderedDict()
        self._finished: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def start(self, request_id: str, recording: Recording) -> bool:
        """From now on `request_id` can be found while it runs. Whether it was cut before it came."""
        self._running[request_id] = recording
        return self._cut.pop(request_id, False)

    def cut(self, request_id: str) -> Recording | None:
        """The recording of a request that is to end. None where it does not run; `start` tells if it comes later."""
        recording = self._running.get(request_id)
        if recording is None and request_id not in self._finished:
            self._cut[request_id] = True
            while len(self._cut) > self._limit:
                self._cut.popitem(last=False)
        return recording

    def finish(self, request_id: str, recording: Recording) -> None:
        """The response ended, one way or another: keeps the record if anything was sampled."""
        recording.done.set()
        if self._running.get(request_id) is recording:
            del self._running[request_id]
        if not recording.sampled:
            return
        data = encode_tap(recording.frozen())
        self._bytes += len(data) - len(self._finished.pop(request_id, b""))
        self._finished[request_id] = data
        while self._finished and (len(self._finished) > self._limit or self._bytes > self._max_bytes):
            self._bytes -= len(self._finished.popitem(last=False)[1])

    async def get(self, request_id: str, wait_seconds: float) -> bytes | None:
        """The encoded record; waits for a running request to end. None: unknown, forgotten, or nothing was sampled."""
        recording = self._running.get(request_id)
        if recording is not None:
            try:
                await asyncio.wait_for(recording.done.wait(), wait_seconds)
            except TimeoutError:
                return None
        return self._finished.get(request_id)
