"""`everloop log`: what is on the event log, as JSON. For operators: it shows what users wrote."""

import contextlib
import datetime
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, utf8

if TYPE_CHECKING:
    from ingest.config import LakePlace, LogSettings
    from ingest.contracts.events import Record

app = typer.Typer(no_args_is_help=True)


@app.command()
def tail(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="The last so many events.")] = 10,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Print the last events that are sealed, one JSON object a line."""
    from ingest import seek

    settings, spool, _ = _log(config)
    _print(seek.last(settings, spool, count), as_json)


@app.command("seek")
def seek_(
    turn: Annotated[str | None, typer.Option("--turn", callback=utf8, help="The samples of this turn.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="From 2026-11-30T20:15, or Unix seconds.")] = None,
    spool: Annotated[str | None, typer.Option("--spool", help="From this spool, with --sequence.")] = None,
    sequence: Annotated[int, typer.Option("--sequence", min=1, help="From this number of the spool.")] = 1,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many events from there.")] = 10,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Print the events at one place of the log: a turn, a time, or a spool's sequence."""
    if sum(one is not None for one in (turn, time, spool)) != 1:
        raise typer.BadParameter("name one of --turn, --time and --spool")
    at = None if time is None else _seconds(time)
    from ingest import seek

    settings, root, lake = _log(config)
    if turn is not None:
        found = seek.turn(settings, root, lake, turn)
    elif at is not None:
        found = seek.since(settings, root, at, count)
    else:
        assert spool is not None
        found = seek.place(settings, root, spool, sequence, count)
    _print(found, as_json)


@app.command("count")
def count_(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Count the events on the log by kind."""
    from ingest import seek

    settings, spool, _ = _log(config)
    counts = seek.count(settings, spool)
    if as_json:
        print_json(dict(counts))
    else:
        print_table(("event", "count"), sorted(counts.items()))


def _log(config: Path) -> "tuple[LogSettings, Path, LakePlace]":
    """The settings of the log, the spools, and the lake."""
    from pipelines.cli.parts import open_home
    from pipelines.stack import addresses

    found, home = open_home(config)
    return found.log_settings(addresses.load(home).kafka), home.spool, home.lake


def _print(records: "list[Record]", as_json: bool) -> None:
    from ingest.log import readable

    shown = [readable(record) for record in records]
    if as_json:
        print_json(shown)
    else:
        for one in shown:
            print(json.dumps(one))


def _seconds(text: str) -> float:
    """Unix seconds of a time as people write it; local where it names no zone."""
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)):
            return seconds
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise typer.BadParameter(
            f'"{text}" is no time: 2026-11-30T20:15, or Unix seconds', param_hint="--time"
        ) from error
