"""How the command line speaks: JSON for programs, tables for people, one sentence for what went wrong."""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer


def utf8(name: str | None) -> str | None:
    """A name as the tables have them; typer calls it with what was typed."""
    try:
        (name or "").encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("a name is text in UTF-8: this terminal sent something else") from None
    return name


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", envvar="EVERLOOP_CONFIG", help="The configuration file.", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_CONFIG = Path("everloop.toml")

PACKAGES = ("serving", "ingest", "trainer", "evaluation", "promotion", "pipelines")
_FEW = 4
"""Columns that always stand beside each other."""
_READERS = ("_internal", "_duckdb", "pyarrow")
"""Where errors of delta-rs, DuckDB and Arrow say they are from."""


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=1, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table on standard output; where that is no terminal, as wide as its content.

    On a terminal that is too narrow for its words, the ids among them, many columns become a block of lines a row.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    # Text, for in a plain string rich would take `[gateway]` for markup and leave it out.
    cells = [[Text("" if cell is None else str(cell)) for cell in row] for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console = Console() if sys.stdout.isatty() else Console(width=1 << 16)
    unbounded = console.options.update(max_width=1 << 16)
    if len(columns) > _FEW and Measurement.get(console, unbounded, table).minimum > console.width:
        for row in cells:
            block = Table(box=None, pad_edge=False, show_header=False)
            block.add_column(style="bold", no_wrap=True)
            block.add_column(overflow="fold")
            for column, cell in zip(columns, row, strict=True):
                block.add_row(column, cell)
            console.print(block)
            console.print()
    else:
        console.print(table)


def when(seconds: float | None) -> str:
    """A time as people read it: local, to the second; the number where no calendar has it."""
    try:
        return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def sentence(error: Exception) -> str | None:
    """What to tell of an error that a part of everloop raised; None for one that is a fault of the program."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] not in PACKAGES:
        return f"{error.name} is not installed here: install everloop[control,engine,trainer]"
    if type(error).__module__.split(".")[0] in PACKAGES:
        return str(error)
    if type(error).__module__.split(".")[0] in _READERS:
        first = str(error).strip().split("\n")[0]
        return f"a file of the lake or of a dataset cannot be read, see docs/lake.md: {first}"
    return None
