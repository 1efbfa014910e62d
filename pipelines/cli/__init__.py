"""The command line: what an operator does in a day.

It answers at once: a command imports what it needs when it is called, never at the top of a module. Errors are one
sentence on standard error, exit code 1; wrong usage is exit code 2; `--json` wherever a table is printed.

- `stack`: up, down, status, doctor      - `loop`: run, runs, train, evaluate
- `registry`: versions, promote, rollback - `keys`, `log`, `kafka`, `config`
- `dataset`: what the trainer reads      - `rewards`: why a turn got the one it has
- `subjects`: who opted out of training
- `trace`: what was learned from what    - `forget`: who is removed for ever, and the receipts
- `processes`: gateway, control, engine, simulate, demo: as `python -m …`, with its own options
"""

import os
import sys
from typing import Annotated

import typer

from pipelines.cli import (
    config,
    dataset,
    forget,
    kafka,
    keys,
    log,
    loop,
    processes,
    registry,
    rewards,
    stack,
    subjects,
    trace,
)
from pipelines.cli.output import sentence

app = typer.Typer(
    name="everloop",
    help="The serving backend whose model keeps learning from its users.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
stack.add_to(app)
loop.add_to(app)
registry.add_to(app)
trace.add_to(app)
app.add_typer(keys.app, name="keys", help="API keys: create, list, revoke.")
app.add_typer(subjects.app, name="subjects", help="End users who opted out of training: opt-out, opt-in, list.")
app.add_typer(rewards.app, name="rewards", help="Rewards of turns: explain.")
app.add_typer(dataset.app, name="dataset", help="Datasets: list, show, diff, rows, refreeze; suites of the gate.")
app.add_typer(forget.app, name="forget", help="Remove an end user or a session for ever; status: the receipts.")
app.add_typer(log.app, name="log", help="The event log: tail, count, seek.")
app.add_typer(kafka.app, name="kafka", help="A Kafka broker on this machine, for development: up, down.")
app.add_typer(config.app, name="config", help="The configuration: check, reference.")
processes.add_to(app)


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(version("everloop"))
        raise typer.Exit


@app.callback()
def everloop(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The serving backend whose model keeps learning from its users."""


def main() -> None:
    """The command `everloop`."""
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # its client would write between our lines
    try:
        app()
    except Exception as error:
        said = sentence(error)
        if said is None:
            raise
        print(said, file=sys.stderr)
        raise SystemExit(1) from None
