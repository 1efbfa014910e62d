"""`everloop up`, `down`, `status`, `doctor`: the processes of this machine."""

import sys

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, when


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (up, down, status, doctor):
        app.command()(command)


def up(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Start everything here, and wait until it is in service."""
    from pipelines.cli.progress import showing
    from pipelines.config import load
    from pipelines.stack.up import Stack

    with showing() as tell:
        where = Stack(load(config), config, tell).up()
    found = {"gateway": where.gateway, "control": where.control, "mlflow": where.mlflow, "kafka": where.kafka}
    if as_json:
        print_json(found)
        return
    print(f"everloop is in service. Base URL for applications: {where.gateway}/v1 · MLflow: {where.mlflow}")
    print(
        "A key for an application: `everloop keys create NAME`. How it stands: `everloop status`. End: `everloop down`."
    )


def down(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Stop everything on this machine, and check that nothing is left."""
    from pipelines.config import load
    from pipelines.stack.up import Stack

    ended = Stack(load(config), config).down()
    rest = f" ({len(ended)} processes had to be ended one by one)" if ended else ""
    print(f"everloop is down{rest}")


def status(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show engines, versions, spool, the last run and the next."""
    from pipelines.config import load
    from pipelines.stack.status import status as read

    found = read(load(config))
    if as_json:
        print_json(found)
        return
    print(f"{'running' if found['running'] else 'down'} in {found['home']} · spool {found['spool_bytes'] / 1e6:.1f} MB")
    for problem in found["problems"]:
        print(problem, file=sys.stderr)
    if found["running"]:
        print(" · ".join(f"{name} {url}" for name, url in found["addresses"].items() if url))
    if found["processes"]:
        print()
        rows = ((p["name"], p["state"], p["pid"], when(p["since"])) for p in found["processes"])
        print_table(("process", "state", "pid", "since"), rows)
    if found["engines"]:
        print()
        columns = ("engine_id", "policy", "role", "state", "version", "error")
        print_table(columns, ([engine[column] for column in columns] for engine in found["engines"]))
    print()
    print_table(
        ("policy", "desired", "converged", "last run", "", "next look"),
        (
            (name, p["desired"], p["converged"] if found["running"] else "", *_last(p["last_run"]), when(p["next_run"]))
            for name, p in found["policies"].items()
        ),
    )


def doctor(
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Check machine, packages, configuration and leftovers.

    Exit code 1 where something keeps `up` from starting.
    """
    from pipelines.cli.parts import open_home
    from pipelines.stack import checks, leftovers
    from pipelines.stack.supervisor import Supervisor

    found, folder = open_home(config)
    supervisor = Supervisor(folder)
    running = supervisor.running
    left = [] if running else leftovers.find(folder.root, supervisor.pid)
    all_checks = checks.all_of(found, folder.root, begun=running or bool(left))
    if not running:
        all_checks.append(
            checks.Check(
                "leftovers",
                not left,
                ", ".join(map(str, left)) or "none",
                "processes of a stack whose supervisor was killed: `everloop up` or `everloop down` ends them",
                fatal=False,
            )
        )
    _report(all_checks, as_json)


def _report(found: list, as_json: bool) -> None:
    if as_json:
        print_json([{"name": c.name, "ok": c.ok, "seen": c.seen, "advice": "" if c.ok else c.advice} for c in found])
    else:
        rows = (
            ("ok" if c.ok else "wrong" if c.fatal else "note", c.name, c.seen, "" if c.ok else c.advice) for c in found
        )
        print_table(("", "check", "seen", "what to do"), rows)
    if any(c.fatal and not c.ok for c in found):
        raise typer.Exit(1)


def _last(run: dict | None) -> tuple[str, str]:
    if run is None:
        return "", ""
    return run["run_id"], f"{run['outcome'] or run['state']}: {run['reason'] or run['stage'] or ''}"
