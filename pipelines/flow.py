"""The loop, once: what a run does, in the order in which it does it.

Each stage is idempotent and recorded (`pipelines.runs`): a run that was killed anywhere goes on from its last
finished stage, and a run that ends early says why. What a stage does is in `pipelines.stages`; where the next run
starts is in `pipelines.lineage`. One process at a time works on a policy: it holds the lock file of that policy.
"""

import fcntl
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pipelines.errors import RunBusy
from pipelines.records import Outcome, Run, RunState, Stage, StageState
from pipelines.runs import MAX_ATTEMPTS, Runs

log = logging.getLogger(__name__)


class Stages(Protocol):
    """What the stages do. Each returns JSON-like values, which are recorded, or raises `Ended` or an error."""

    def land(self, run: Run) -> dict: ...
    def freeze(self, run: Run, landed: dict) -> dict: ...
    def gate(self, run: Run) -> dict: ...
    def lineage(self, run: Run) -> dict: ...
    def train(self, run: Run, origin: dict) -> dict: ...
    def register(self, run: Run) -> dict: ...
    def evaluate(self, run: Run, origin: dict) -> dict: ...
    def decide(self, run: Run, verdict: dict) -> dict: ...
    def roll_out(self, run: Run, decided: dict) -> dict: ...


class Ended(Exception):
    """The run is over before its last stage, for a reason that is no failure."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class Waiting(Exception):
    """Too few turns are ready."""


class Interrupted(Exception):
    """Someone asked the process to stop."""


class Flow:
    """Runs one policy's loop. `stopping` tells whether the process was asked to end."""

    def __init__(self, policy: str, stages: Stages, runs: Runs, lock: Path, stopping: Callable[[], bool]) -> None:
        self._policy, self._stages, self._runs = policy, stages, runs
        self._lock, self._stopping = lock, stopping

    def run(self, min_turns: int) -> Run:
        """Goes on with the policy's unfinished run, or begins one, and comes back with how it stands then.

        Raises `RunBusy` where another process is at it.
        """
        with _locked(self._lock, self._policy):
            run = self._take_up() or self._runs.create(self._policy)
            try:
                self._loop(run, min_turns)
                return self._close(run, RunState.DONE, "promoted, and the fleet converged", Outcome.PROMOTED)
            except Ended as end:
                return self._close(run, RunState.DONE, end.reason, end.outcome)
            except Waiting as waiting:
                return self._close(run, RunState.WAITING, str(waiting))
            except Interrupted as stop:
                return self._close(run, RunState.INTERRUPTED, str(stop))
            except Exception as error:
                log.exception("run %s of policy %s failed", run.run_id, self._policy)
                return self._close(run, RunState.FAILED, str(error) or type(error).__name__)

    def _loop(self, run: Run, min_turns: int) -> None:
        do, s = self._do, self._stages
        landed = do(run, Stage.LAND, lambda: s.land(run), needed=min_turns)
        do(run, Stage.FREEZE, lambda: s.freeze(run, landed))
        do(run, Stage.GATE, lambda: s.gate(run))
        origin = do(run, Stage.LINEAGE, lambda: s.lineage(run))
        do(run, Stage.TRAIN, lambda: s.train(run, origin))
        do(run, Stage.REGISTER, lambda: s.register(run))
        verdict = do(run, Stage.EVALUATE, lambda: s.evaluate(run, origin))
        decided = do(run, Stage.DECIDE, lambda: s.decide(run, verdict))
        do(run, Stage.ROLL_OUT, lambda: s.roll_out(run, decided))

    def _do(self, run: Run, stage: Stage, work: Callable[[], dict], needed: int = 0) -> dict:
        """What the stage returned, now or before the process was killed. `needed`: how many turns must be ready."""
        result = self._runs.get(run.run_id).result(stage)
        if result is None:
            if self._stopping():
                raise Interrupted(f"stopped before {stage}")
            result = self._work(run, stage, work)
            finished = result.get("ready", 0) >= needed
            self._runs.end(run.run_id, stage, StageState.FINISHED if finished else StageState.WAITING, result)
            if not finished:
                raise Waiting(f"{result['ready']} of {needed} turns are ready")
        if "ended" in result:
            raise Ended(Outcome(result["ended"]), result["reason"])
        return result

    def _work(self, run: Run, stage: Stage, work: Callable[[], dict]) -> dict:
        attempt = self._runs.begin(run.run_id, stage).attempts
        # Landing is what each look begins with, mostly to find that it is too early.
        level = logging.DEBUG if stage == Stage.LAND else logging.INFO
        log.log(level, "run %s of policy %s: %s (attempt %d)", run.run_id, self._policy, stage, attempt)
        try:
            return work()
        except Ended as end:
            return {"ended": end.outcome, "reason": end.reason}
        except Exception as error:
            state = StageState.INTERRUPTED if self._stopping() else StageState.FAILED
            self._runs.end(run.run_id, stage, state, error=str(error) or type(error).__name__)
            if self._stopping():
                raise Interrupted(f"stopped within {stage}") from error
            raise

    def _take_up(self) -> Run | None:
        """The unfinished run, running again; abandons one whose stage was begun too often."""
        run = self._runs.unfinished(self._policy)
        if run is None:
            return None
        open_ends = (StageState.RUNNING, StageState.FAILED)
        tired = [s for s in run.stages if s.attempts >= MAX_ATTEMPTS and s.state in open_ends]
        if tired:
            said = tired[0].error or "killed each time"
            reason = f"{tired[0].stage} was tried {tired[0].attempts} times: {said}"
            self._runs.move(run.run_id, RunState.ABANDONED, reason)
            return None
        return self._runs.move(run.run_id, RunState.RUNNING)

    def _close(self, run: Run, state: RunState, reason: str, outcome: Outcome | None = None) -> Run:
        level = logging.DEBUG if state == RunState.WAITING else logging.INFO
        log.log(level, "run %s of policy %s is %s: %s", run.run_id, self._policy, outcome or state, reason)
        return self._runs.move(run.run_id, state, reason, outcome)


@contextmanager
def _locked(path: Path, policy: str) -> Iterator[None]:
    """Holds the lock file while the block runs. The kernel frees it with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(
                f'a run of policy "{policy}" is at work in another process: `everloop runs` shows it'
            ) from None
        yield
