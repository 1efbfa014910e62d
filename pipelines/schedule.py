"""The scheduler: `python -m pipelines.schedule --config FILE` runs each policy's loop when it is time.

APScheduler keeps one job per policy in `pipelines.db`, under an explicit id; a look that comes while the last one
is still at work is left out (`max_instances = 1`), several missed ones are one (`coalesce`). Runs of all policies
share one thread: on one machine they would only take each other's cores. A lease makes the scheduler one: a second
process waits as a standby, and one that loses its lease ends at once.

SIGTERM: no stage is begun any more; the one at work may end within `stop_seconds`, then its worker is killed. Either
way the run is recorded as interrupted, and the next scheduler goes on with it.
"""

import argparse
import logging
import os
import signal
import threading
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from ingest.contracts.process_logs import structured
from pipelines.config import Config, ScheduleConfig, load
from pipelines.errors import PipelineError, RunBusy
from pipelines.forgetting import Forgetting
from pipelines.home import Home
from pipelines.lease import Lease
from pipelines.local import Loop
from pipelines.pace import not_before
from pipelines.records import RunState
from pipelines.workers import FAMILIES

LEASE = "scheduler"
LEASE_SECONDS = 15.0
FORGET_SECONDS = 300
"""Between two looks at what is to be forgotten: it waits for spools, and for Kafka's retention of days."""

log = logging.getLogger(__name__)


@cache
def loop_of(config_path: str) -> Loop:
    """This process's loop: its workers stay, so their imports are paid once. A persisted job can only name it."""
    return Loop.open(Path(config_path))


def look(config_path: str, policy: str, min_turns: int | None = None, asked: bool = False) -> None:
    """The job: goes on with the policy's run, or begins one; `asked`: a person wants it now, whatever went wrong."""
    loop = loop_of(config_path)
    settings = loop.config.policies[policy].schedule
    if not asked and time.time() < not_before(loop.runs.history(policy, 20), settings.retry_seconds):
        return
    try:
        loop.run(policy, min_turns)
    except RunBusy as busy:
        log.info("%s", busy)
    except PipelineError as error:
        log.error("policy %s: the run could not be taken up: %s", policy, error)


def forget(config_path: str) -> None:
    """The job: takes up the receipts of what is to be forgotten, as far as they go now."""
    loop = loop_of(config_path)
    if not loop.home.receipts.exists():
        return
    for receipt in Forgetting(loop.config, loop.home, loop.workers).look():
        log.info("receipt %s is %s: %s", receipt.receipt_id, receipt.state, receipt.waits or "nothing is waited for")


def trigger_of(settings: ScheduleConfig) -> BaseTrigger | None:
    """The trigger of a policy, None where its loop runs only on request."""
    if settings.cron is not None:
        return CronTrigger.from_crontab(settings.cron, timezone=UTC)
    if settings.every_seconds is not None:
        return IntervalTrigger(seconds=settings.every_seconds, timezone=UTC)
    return None


def job_id(policy: str) -> str:
    """The job's id in the store."""
    return f"loop-{policy}"


def build(config: Config, config_path: Path, database: Path) -> BackgroundScheduler:
    """The scheduler with its persistent store, executor and job defaults; not started."""
    return BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(url=f"sqlite:///{database}", tablename="jobs")},
        executors={"default": ThreadPoolExecutor(1)},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 3600},
        timezone=UTC,
    )


def sync_jobs(scheduler: BackgroundScheduler, config: Config, config_path: Path) -> None:
    """Makes the stored jobs what the configuration says. A job whose trigger did not change keeps its next time."""
    wanted = {job_id(name): (name, policy.schedule) for name, policy in config.policies.items()}
    stored = {job.id: job for job in scheduler.get_jobs()}
    for gone in stored.keys() - wanted.keys():
        scheduler.remove_job(gone)
    for job, (policy, settings) in wanted.items():
        trigger = trigger_of(settings)
        if trigger is None:
            if job in stored:
                scheduler.remove_job(job)
            continue
        arguments = [str(config_path), policy]
        before = stored.get(job)
        if before and str(before.trigger) == str(trigger) and list(before.args) == arguments:
            scheduler.modify_job(job, misfire_grace_time=settings.misfire_grace_seconds)
            continue
        scheduler.add_job(
            "pipelines.schedule:look",
            trigger,
            args=arguments,
            id=job,
            replace_existing=True,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=settings.misfire_grace_seconds,
        )


def serve(config_path: Path, stop: threading.Event) -> int:
    """Runs the scheduler until `stop` is set, as a standby first where another holds the lease. The exit code."""
    config = load(config_path)
    home = Home.of(config)
    lease = Lease(home.database, LEASE, LEASE_SECONDS)
    log.info("waiting for the lease")
    if not lease.wait(stop):
        return 0
    lost = threading.Event()

    def end_at_once() -> None:
        # Another scheduler holds the lease: a worker of ours may still be writing, so nothing is tidied up.
        log.error("the lease was lost: another scheduler took over")
        lost.set()
        os._exit(3)

    released = threading.Event()
    lease.keep(released, end_at_once)
    log.info("holding the lease as %s", lease.holder)
    loop = loop_of(str(config_path))
    loop.workers.warm(FAMILIES)
    scheduler = build(config, config_path, home.database)
    scheduler.start(paused=True)
    sync_jobs(scheduler, config, config_path)
    scheduler.add_job(
        "pipelines.schedule:forget",
        IntervalTrigger(seconds=FORGET_SECONDS, timezone=UTC),
        args=[str(config_path)],
        id="forget",
        next_run_time=datetime.now(UTC),
        replace_existing=True,
    )
    resume = [name for name in config.policies if _was_cut(loop, name)]
    scheduler.resume()
    for policy in resume:
        _now(scheduler, config_path, policy)
    while not stop.wait(0.5):
        for policy, min_turns in loop.runs.take_requests().items():
            if policy in config.policies:
                _now(scheduler, config_path, policy, min_turns)
    log.info("stopping")
    grace = max((p.schedule.stop_seconds for p in config.policies.values()), default=0.0)
    loop.stop(grace)
    scheduler.shutdown(wait=True)
    loop.workers.close()
    released.set()
    lease.release()
    return 0


def _was_cut(loop: Loop, policy: str) -> bool:
    run = loop.runs.unfinished(policy)
    return run is not None and run.state in (RunState.RUNNING, RunState.INTERRUPTED)


def _now(scheduler: BackgroundScheduler, config_path: Path, policy: str, min_turns: int | None = None) -> None:
    """One look as soon as the thread is free, beside the policy's own times."""
    scheduler.add_job(
        "pipelines.schedule:look",
        "date",
        run_date=datetime.now(UTC),
        args=[str(config_path), policy, min_turns, True],
        id=f"now-{policy}",
        replace_existing=True,
        misfire_grace_time=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.schedule", description="Runs each policy's loop in time."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    structured()
    # A look that is left out because the last is still at work is what we want, and no warning.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        code = serve(arguments.config.resolve(), stop)
    except PipelineError as error:
        raise SystemExit(str(error)) from None
    raise SystemExit(code)


if __name__ == "__main__":
    # The job names its function in this module by its real name: run that one, not a second copy.
    from pipelines.schedule import main as real_main

    real_main()
