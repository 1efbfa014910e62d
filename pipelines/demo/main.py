"""The demo in its order: check, prepare, stack up, play, report, stay up.

Whatever fails becomes one sentence and exit code 1, and the stack is taken down; its logs and data stay.
"""

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console

from ingest.contracts.files import write_atomically
from pipelines.config import Config, load
from pipelines.control import Control
from pipelines.demo import machine, model, summary
from pipelines.demo.errors import DemoFailed
from pipelines.demo.facts import Addresses, Facts
from pipelines.demo.page import page
from pipelines.demo.play import POLICY, Place, play
from pipelines.demo.report import build
from pipelines.demo.show import Scene, Screen
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.stack import secrets
from pipelines.stack.addresses import HOST
from pipelines.stack.addresses import Addresses as Where
from pipelines.stack.up import Stack, Tell


@dataclass(frozen=True)
class Options:
    """What the environment says. `folder` is the checkout."""

    folder: Path
    cycles: int = 3
    once: bool = False
    seed: int = 0

    @classmethod
    def read(cls, environment: Mapping[str, str], folder: Path) -> "Options":
        """Options from `DEMO`, `DEMO_CYCLES` and `DEMO_SEED`."""
        cycles, seed = (environment.get(name, "") for name in ("DEMO_CYCLES", "DEMO_SEED"))
        return cls(
            folder,
            cycles=max(1, int(cycles)) if cycles.isdigit() else cls.cycles,
            once=environment.get("DEMO") == "once",
            seed=int(seed) if seed.isdigit() else cls.seed,
        )

    @property
    def configuration(self) -> Path:
        """The demo's stack."""
        return self.folder / "demo" / "everloop.toml"


def run(options: Options) -> int:
    """The demo; the exit code."""
    # Sentences name tables of the configuration, `[gateway]`: that is no markup.
    console = Console(highlight=False, markup=False)
    failed = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    stack: Stack | None = None
    try:
        with interruptible():
            config = _ready(options)
            stack = Stack(config, options.configuration)
            return _with(stack, options, console)
    except PipelineError as error:
        failed.print(f"The demo failed: {error}", style="red")
        if stack is not None:
            failed.print(f"Logs: {stack.home.logs}")
        return 1
    except KeyboardInterrupt:
        failed.print("Stopped.")
        return 130
    finally:
        if stack is not None:
            _take_down(stack, console)


def _ready(options: Options) -> Config:
    """Checks before anything is begun. Raises `DemoFailed`, `ConfigError`."""
    if not options.configuration.is_file():
        raise DemoFailed(f"there is no {options.configuration}: run `make demo` in a checkout of everloop")
    config = load(options.configuration)
    if missing := machine.lacks(machine.this_machine(config.everloop.home)):
        raise DemoFailed("\n".join(missing))
    if Stack(config, options.configuration).supervisor.running:
        said = options.configuration.relative_to(options.folder)
        raise DemoFailed(f"its stack runs already: end it with `everloop down --config {said}`")
    return config


def _with(stack: Stack, options: Options, console: Console) -> int:
    scene = Scene(options.cycles)
    steps: dict[str, float] = {}
    with Screen(scene, console) as screen:
        _set_aside(stack.home, options.folder / ".cache" / "earlier-demos", screen)
        with screen.step("preparing the model", steps):
            model.prepare(stack.config.policies[POLICY].model, options.folder / ".cache" / "prepare-model.log")
        with screen.step("starting the stack", steps):
            where = Stack(stack.config, stack.config_path, _teller(scene, screen)).up()
        place = _place(stack, options, where, _serve(stack.home.docs))
        facts = asyncio.run(play(place, options.cycles, scene, screen, steps, options.seed))
    report = _write(facts, stack.home)
    summary.show(report, stack.home.root, console)
    if not options.once:
        console.print("The stack stays up. Ctrl-C ends it.")
        _until_interrupted()
    return 1 if report["problems"] else 0


def _place(stack: Stack, options: Options, where: Where, docs: str) -> Place:
    keys = secrets.load_or_create(stack.home.run / "secrets.json")
    control = Control(where.control, keys.control_token)
    made = control.create_key("demo users", ["inference", "feedback"])
    return Place(
        config=stack.config,
        home=stack.home,
        control=control,
        addresses=Addresses(where.gateway, where.mlflow, docs),
        user_key=made["key"],
        evaluation_key=keys.evaluation_key,
        questions=options.configuration.parent / "questions",
        log="kafka" if where.kafka else "embedded",
    )


def _write(facts: Facts, home: Home) -> dict:
    """`report.json` and `report.html` in the home folder; the report."""
    report = build(facts)
    write_atomically(home.root / "report.json", json.dumps(report, indent=1).encode())
    write_atomically(home.root / "report.html", page(report).encode())
    return report


def _set_aside(home: Home, earlier: Path, screen: Screen) -> None:
    """The demo begins at the base: what an earlier one left is moved, never deleted."""
    if home.root.exists() and any(home.root.iterdir()):
        kept = earlier / time.strftime("%Y-%m-%d-%H%M%S", time.localtime(home.root.stat().st_mtime))
        earlier.mkdir(parents=True, exist_ok=True)
        home.root.rename(kept)
        screen.say(f"what an earlier demo left is now in {kept}; delete it when you need it no more")


def _teller(scene: Scene, screen: Screen) -> Tell:
    told: set[tuple[str, str]] = set()

    def tell(part: str, doing: str) -> None:
        scene.step = f"starting the stack: {part} {doing}"
        if (part, doing) not in told:
            told.add((part, doing))
            screen.say(f"  {part}: {doing}")

    return tell


def _serve(docs: Path) -> str:
    """Data Docs over HTTP on loopback, from a thread, as long as the demo lives; the address of their first page."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal shows the loop."""

    server = ThreadingHTTPServer((HOST, 0), partial(Quiet, directory=str(docs)))
    threading.Thread(target=server.serve_forever, name="data-docs", daemon=True).start()
    return f"http://{HOST}:{server.server_port}/site/index.html"


def _take_down(stack: Stack, console: Console) -> None:
    """Ends every process of the stack; a second Ctrl-C must not leave half of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    console.print("Taking the stack down.")
    try:
        stack.down()
    except PipelineError as error:
        console.print(str(error), style="red", soft_wrap=True)


def _until_interrupted() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that it never leaves a stack behind.

    Ctrl-C is asked for by name: Python leaves it ignored where a shell began this in the background.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
