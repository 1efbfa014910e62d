"""One run now: asked of the scheduler where one is running, done here where none is."""

import time
from collections.abc import Callable
from pathlib import Path

from pipelines.config import Config
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.lease import holder_of
from pipelines.records import Run, RunState
from pipelines.runs import Runs
from pipelines.stack import addresses


def run_now(
    config_path: Path, config: Config, home: Home, policy: str, min_turns: int | None, say: Callable[[str], None]
) -> Run:
    """The run, as it stands when it comes to rest. `say` hears each stage as it begins."""
    addresses.load(home)
    runs = Runs(home.database)
    if holder_of(home.database, "scheduler", time.time()) is None:
        from pipelines.local import Loop

        loop = Loop(config, home)
        try:
            return loop.run(policy, min_turns)
        finally:
            loop.workers.close()
    since = time.time()
    runs.request(policy, min_turns)
    say("asked the scheduler")
    return follow(runs, policy, since, say, lambda: holder_of(home.database, "scheduler", time.time()) is not None)


def follow(
    runs: Runs,
    policy: str,
    since: float,
    say: Callable[[str], None],
    alive: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Run:
    """Watches the policy's newest run until it rests in a state that it came to after `since`."""
    told = ""
    while True:
        newest = next(iter(runs.history(policy, 1)), None)
        if newest and newest.stages and newest.state == RunState.RUNNING:
            doing = f"{newest.run_id}: {newest.stages[-1].stage}"
            if doing != told:
                say(doing)
                told = doing
        elif newest and newest.updated_at >= since and not runs.requested(policy):
            return newest
        if not alive():
            raise PipelineError("the scheduler ended: `everloop status` tells; the run goes on when it is back")
        sleep(0.3)
