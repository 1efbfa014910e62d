"""Watching the loop at work: the run history and the fleet, polled, into the scene.

The demo only watches: what becomes of traffic is the scheduler's business. A run that cannot end becomes `DemoFailed`.
"""

import asyncio
import time
from collections.abc import Callable

from pipelines.control import Control
from pipelines.demo.errors import DemoFailed
from pipelines.demo.show import Scene, Screen
from pipelines.errors import PipelineError
from pipelines.records import Run, RunState, Stage, StageState
from pipelines.runs import Runs

POLL_SECONDS = 0.3


class Watch:
    """Follows the runs of `policy`. `run_seconds` is the longest that one run may take, waiting left out."""

    def __init__(
        self, policy: str, runs: Runs, control: Control, scene: Scene, screen: Screen, run_seconds: float = 900.0
    ) -> None:
        self._policy, self._runs, self._control = policy, runs, control
        self._scene, self._screen, self._run_seconds = scene, screen, run_seconds
        self._said: set[tuple[str, Stage, int, StageState]] = set()

    async def until(self, cycle: int, done: Callable[[Run], bool], timeout: float | None = None) -> Run | None:
        """The run number `cycle` once it is `done`; None where `timeout` seconds pass first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            run = await asyncio.to_thread(self._look, cycle)
            if run is not None and done(run):
                return run
            if deadline is not None and time.monotonic() > deadline:
                return None
            await asyncio.sleep(POLL_SECONDS)

    def _look(self, cycle: int) -> Run | None:
        try:
            self._scene.engines = self._control.fleet()["engines"]
        except PipelineError:
            self._scene.engines = []  # control is being restarted: the view shows no fleet meanwhile
        run = next((r for r in self._runs.history(self._policy) if r.number == cycle), None)
        if run is None:
            return None
        self._scene.run = run
        self._tell(run)
        if run.state == RunState.ABANDONED:
            raise DemoFailed(f"cycle {cycle} was given up: {run.reason}. The scheduler's log says more")
        busy = run.state not in (RunState.WAITING, RunState.DONE)
        if busy and time.time() - run.started_at > self._run_seconds:
            raise DemoFailed(
                f"cycle {cycle} is {run.state} after {self._run_seconds:.0f} s: {run.reason or 'a stage does not end'}"
            )
        return run

    def _tell(self, run: Run) -> None:
        """Says each stage once, when it ends or fails."""
        for record in run.stages:
            key = (run.run_id, record.stage, record.attempts, record.state)
            if key in self._said:
                continue
            self._said.add(key)
            if record.state == StageState.FAILED:
                self._screen.say(f"{record.stage} failed, and is tried again: {record.error}")
            elif record.state == StageState.FINISHED and record.finished_at is not None:
                seconds = record.finished_at - record.started_at
                self._screen.say(f"{record.stage:<9} {seconds:5.1f} s  {_told(record.stage, record.result)}".rstrip())


def _told(stage: Stage, result: dict) -> str:
    """What a stage's result comes to, in a few words."""
    if "ended" in result:
        return f"{result['ended']}: {result['reason']}"
    if stage == Stage.LAND:
        return f"{result['ready']} turns are ready"
    if stage == Stage.GATE:
        return f"{result['rows']} rows passed"
    if stage == Stage.LINEAGE:
        return f"from {result['parent']}: {result['why']}"
    if stage == Stage.EVALUATE:
        bounds = f"[{result['low']:+.3f}, {result['high']:+.3f}]"
        return f"{result['decision']}: {result['champion_mean']:.2f} → {result['challenger_mean']:.2f}, {bounds}"
    if stage == Stage.ROLL_OUT:
        pauses = ", ".join(f"{swap['pause_ms']:.0f} ms" for swap in result["swaps"])
        return f"requests stood still for {pauses or 'no time'}; the fleet converged"
    return ""
