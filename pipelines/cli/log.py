"""`everloop log`: what is on the event log, as JSON. For operators: it shows what users wrote."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table

app = typer.Typer(no_args_is_help=True)


@app.command()
def tail(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="The last so many events.")] = 10,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Print the last events that are sealed, one JSON object a line."""
    from collections import deque

    for event in deque(_events(config), maxlen=count):
        print(json.dumps(event))


@app.command("count")
def count_(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Count the events on the log by kind."""
    from collections import Counter

    counts = Counter(event.get("event", {}).get("type", "unreadable") for event in _events(config))
    if as_json:
        print_json(dict(counts))
    else:
        print_table(("event", "count"), sorted(counts.items()))


def _events(config: Path) -> Any:
    from ingest.log import tail as read
    from pipelines.cli.parts import open_home
    from pipelines.stack import addresses

    found, home = open_home(config)
    return read(found.log_settings(addresses.load(home).kafka), home.spool)
