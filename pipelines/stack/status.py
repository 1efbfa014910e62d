"""How the stack stands: processes, engines and versions, spool, runs. Reads only, and starts nothing."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from ingest.refused import refused_files
from ingest.spool import damages
from pipelines.config import Config
from pipelines.control import Control
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.records import Run
from pipelines.runs import Runs
from pipelines.stack import addresses, secrets
from pipelines.stack.supervisor import Supervisor


def status(config: Config) -> dict:
    """JSON-like: `running processes addresses engines versions spool_bytes policies problems`.

    `policies` has each policy's desired version, whether the fleet converged on it, its last run and its next look.
    """
    home = Home.of(config)
    supervisor = Supervisor(home)
    problems: list[str] = []
    fleet: dict = {"policies": [], "engines": [], "converged": {}}
    where: dict = {}
    running = supervisor.running
    if running:
        found = addresses.load(home)
        where = {name: getattr(found, name) for name in ("gateway", "metrics", "control", "mlflow", "kafka")}
        try:
            keys = secrets.load_or_create(home.run / "secrets.json")
            fleet = Control(found.control, keys.control_token, timeout=3).fleet()
        except PipelineError as error:
            problems.append(str(error))
    for damage in damages(home.spool):
        rows = damage.lost_rows if damage.whole or damage.lost else "all"
        problems.append(f"spool {damage.spool_id}: {damage.file} was damaged, {rows} rows are lost: see the rejects")
    if refused := len(refused_files(home.spool)):
        problems.append(
            f"events that the broker refused, kept below {home.spool}: {refused}; once it takes them, "
            f"`python -m ingest.forwarder --spool {home.spool} --send-again`"
        )
    desired = {policy["name"]: policy["desired"]["version"] for policy in fleet["policies"]}
    runs = Runs(home.database) if home.database.exists() else None
    looks = next_looks(home.database) if running else {}
    return {
        "running": running,
        "home": str(home.root),
        "addresses": where,
        "processes": [msgspec.to_builtins(process) for process in supervisor.processes()],
        "engines": [_engine(engine) for engine in fleet["engines"]],
        "versions": desired,
        "spool_bytes": spool_bytes(home.spool),
        "policies": {
            name: {
                "desired": desired.get(name),
                "converged": fleet["converged"].get(name, False),
                "last_run": run_summary(next(iter(runs.history(name, 1)), None)) if runs else None,
                "next_run": looks.get(name),
                "min_turns": policy.schedule.min_turns,
            }
            for name, policy in config.policies.items()
        },
        "problems": problems,
    }


def spool_bytes(spool: Path) -> int:
    """Bytes of all segments that gateways of this machine hold."""
    return sum(segment.stat().st_size for segment in spool.glob("*/*.db*"))


def next_looks(database: Path) -> dict[str, float]:
    """Policy → when the scheduler looks at it next, in Unix seconds."""
    found: dict[str, float] = {}
    if not database.exists():
        return found
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(database, timeout=5)) as db:
        for job, when in db.execute("SELECT id, next_run_time FROM jobs"):
            policy = job.partition("-")[2]
            if when is not None:
                found[policy] = min(when, found.get(policy, when))
    return found


def run_summary(run: Run | None) -> dict | None:
    """A run on one line: what it came to, or where it is."""
    if run is None:
        return None
    at = run.stages[-1] if run.stages else None
    verdict = next((s.result for s in run.stages if s.stage == "evaluate" and "decision" in s.result), {})
    return {
        "run_id": run.run_id,
        "policy": run.policy,
        "state": run.state,
        "outcome": run.outcome,
        "stage": at.stage if at else None,
        "progress": at.progress if at else {},
        "reason": run.reason,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "difference": verdict.get("difference"),
    }


def _engine(engine: dict) -> dict:
    keys = ("engine_id", "policy", "role", "state", "version", "url", "error")
    defaults = {"role": "serve", "state": "joining", "version": "", "error": ""}
    return {key: engine.get(key, defaults.get(key)) for key in keys}
