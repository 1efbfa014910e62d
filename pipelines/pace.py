"""When a policy's loop may run again after something went wrong: later each time, up to an hour.

A stage that failed fails again when it is tried at once, data that failed its gate is still what is ready, and engines
that refused a version may refuse the next. A person's `everloop run` does not wait.
"""

from collections.abc import Sequence

from pipelines.records import Outcome, Run, RunState

LONGEST_SECONDS = 3600.0


def not_before(newest_first: Sequence[Run], retry_seconds: float) -> float:
    """Unix seconds before which the policy is left alone: 0 where its last run was in order."""
    if not newest_first:
        return 0.0
    last = newest_first[0]
    if last.state == RunState.FAILED:
        times = max((stage.attempts for stage in last.stages), default=1)
    else:
        times = _in_a_row(newest_first)
    if times == 0:
        return 0.0
    return last.updated_at + min(LONGEST_SECONDS, retry_seconds * 2.0 ** min(times - 1, 20))


def _in_a_row(newest_first: Sequence[Run]) -> int:
    """How many of the last runs failed their gate, were rolled back, or were abandoned."""
    for n, run in enumerate(newest_first):
        if run.outcome not in (Outcome.GATE_FAILED, Outcome.ROLLED_BACK) and run.state != RunState.ABANDONED:
            return n
    return len(newest_first)
