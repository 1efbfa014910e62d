"""The loop on this machine: configuration, run history, workers and stages, put together.

The scheduler and `everloop run` both are a `Loop`; a lock file per policy keeps them apart.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.config import Config, load
from pipelines.flow import Flow, Stages
from pipelines.home import Home
from pipelines.records import Run
from pipelines.runs import Runs
from pipelines.stack import addresses, secrets
from pipelines.stages import LocalStages
from pipelines.workers import TRAINER_ENVIRONMENT, Workers


def workers_of(config: Config, home: Home) -> Workers:
    """The stage workers of this process; they share the home folder's locks with those of others."""
    threads = max((policy.trainer.threads for policy in config.policies.values()), default=1)
    return Workers(home.run / "locks", {"trainer": TRAINER_ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)}})


class Loop:
    """Everything that runs the loop of every policy in one home folder. `stages` makes those of one policy."""

    def __init__(self, config: Config, home: Home, stages: Callable[..., Stages] = LocalStages) -> None:
        self.config, self.home, self._stages = config, home, stages
        self.runs = Runs(home.database)
        self.workers = workers_of(config, home)
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    @classmethod
    def open(cls, config_path: Path) -> "Loop":
        """The loop of a configuration file; raises `PipelineError` where the file or the home folder is unusable."""
        config = load(config_path)
        return cls(config, Home.of(config))

    def run(self, policy: str, min_turns: int | None = None) -> Run:
        """One look: goes on with the policy's run or begins one, and comes back with how it stands."""
        needed = min_turns or self.config.policies[policy].schedule.min_turns
        stages = self._stages(
            policy,
            self.config,
            self.home,
            addresses.load(self.home),
            secrets.load_or_create(self.home.run / "secrets.json"),
            self.runs,
            self.workers,
            self._stopping,
        )
        lock = self.home.run / "locks" / f"policy-{policy}.lock"
        self._idle.clear()
        try:
            return Flow(policy, stages, self.runs, lock, self._stopping.is_set).run(needed)
        finally:
            self._idle.set()

    def stop(self, grace: float) -> None:
        """Begins no more stages; lets the one at work go on for `grace` seconds, then kills its worker."""
        self._stopping.set()
        deadline = time.monotonic() + grace
        while not self._idle.is_set() and time.monotonic() < deadline:
            self._idle.wait(0.2)
        self.workers.close()
