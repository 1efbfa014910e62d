"""What one sees: a live view of the loop on a terminal, plain lines elsewhere.

The demo keeps a `Scene` up to date and calls `Screen.draw`; what is worth keeping is said as a line, which stays
above the view. On anything that is no terminal there are the lines only.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipelines.records import Run, Stage, StageState
from pipelines.simulate.traffic import Exchange, Tally

_BAR = 24


@dataclass
class Scene:
    """What the view shows. `engines` are control's, `run` the policy's newest."""

    cycles: int
    step: str = "starting"
    cycle: int = 0
    run: Run | None = None
    tally: Tally = field(default_factory=Tally)
    engines: list[dict] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    accepted: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    started: float = field(default_factory=time.monotonic)

    def hear(self, exchange: Exchange) -> None:
        """Counts an exchange for the version that answered it."""
        if exchange.truth is not None:
            self.turns[exchange.version] += 1
            self.accepted[exchange.version] += exchange.truth

    @property
    def elapsed(self) -> str:
        """Minutes and seconds since the beginning, `m:ss`."""
        seconds = int(time.monotonic() - self.started)
        return f"{seconds // 60}:{seconds % 60:02d}"


class Screen:
    """The live view, or plain lines; a context manager."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene, self._console = scene, console
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._view, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(Text(f"{self._scene.elapsed:>6}  {line}"), soft_wrap=True)

    @contextmanager
    def step(self, name: str, steps: dict[str, float]) -> Iterator[None]:
        """A step of the demo: said, shown while the block runs, and its seconds noted in `steps`."""
        self._scene.step = name
        self.say(name)
        began = time.monotonic()
        yield
        steps[name] = time.monotonic() - began

    def _view(self) -> RenderableType:
        return render(self._scene)


def render(scene: Scene) -> RenderableType:
    """The view of `scene`."""
    head = Text.assemble(
        (" everloop ", "bold reverse"),
        f"  {scene.elapsed}   cycle {scene.cycle} of {scene.cycles}   ",
        (scene.step, "bold"),
    )
    tally = scene.tally
    traffic = f"{tally.turns} turns, {tally.feedback_sent} with feedback, {tally.failed_requests} failed"
    return Group(Text(), head, _stages(scene.run), _versions(scene), _fleet(scene.engines), Text(traffic, "dim"))


def _stages(run: Run | None) -> RenderableType:
    marks = {
        StageState.FINISHED: ("✓", "green"),
        StageState.RUNNING: ("●", "bold yellow"),
        StageState.FAILED: ("✗", "red"),
    }
    line = Text()
    for stage in Stage:
        record = run.stage(stage) if run else None
        mark, style = marks.get(record.state, ("·", "dim")) if record else ("·", "dim")
        line.append(f"{mark} {stage}  ", style)
    return line


def _versions(scene: Scene) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for version, turns in list(scene.turns.items()):  # a copy: it grows while the view is drawn
        mean = scene.accepted[version] / turns
        filled = round(mean * _BAR)
        bar = Text("█" * filled, "green") + Text("░" * (_BAR - filled), "dim")
        table.add_row(version or "?", bar, f"{mean:.2f}", Text(f"acceptance, {turns} turns", "dim"))
    return table


def _fleet(engines: list[dict]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for engine in engines:
        state = engine.get("state", "joining")
        style = {"ready": "green", "swapping": "yellow", "joining": "yellow"}.get(state, "red")
        role = engine.get("role", "serve")
        table.add_row(engine["engine_id"], role, Text(state, style), engine.get("version", ""))
    return table
