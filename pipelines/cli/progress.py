"""What a person sees while the stack starts: one line a part on a terminal, a line a change elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text


@contextmanager
def showing() -> Iterator[Callable[[str, str], None]]:
    """A function that hears (part, what it is doing), shown on standard error until the block ends."""
    console = Console(stderr=True)
    said: dict[str, str] = {}
    began = time.monotonic()

    def table() -> Table:
        shown = Table(box=None, show_header=False, pad_edge=False)
        for part, doing in said.items():
            shown.add_row(Text(part, style="green" if doing == "in service" else ""), Text(doing))
        shown.add_row("", f"{time.monotonic() - began:.0f} s")
        return shown

    if not console.is_terminal:

        def tell(part: str, doing: str) -> None:
            if said.get(part) != doing:
                said[part] = doing
                print(f"{time.monotonic() - began:6.1f} s  {part}: {doing}", file=sys.stderr, flush=True)

        yield tell
        return
    with Live(get_renderable=table, console=console, refresh_per_second=4):
        yield said.__setitem__
