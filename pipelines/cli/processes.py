"""The parts of everloop as commands: `everloop gateway …` is `python -m serving.gateway …`, with its own options.

The process becomes that part (exec): signals, exit code and start-up time are its own.
"""

import os
import sys
from collections.abc import Callable

import typer

MODULES = {
    "gateway": ("serving.gateway", "Run a gateway."),
    "control": ("serving.control", "Run the control process."),
    "engine": ("serving.engines.vllm", "Run a vLLM engine that joins the fleet."),
    "simulate": ("pipelines.simulate", "Let simulated users talk to a gateway."),
    "demo": ("pipelines.demo", "Run the whole loop and show what it does."),
}


def add_to(app: typer.Typer) -> None:
    """Adds one command a part."""
    for name, (module, about) in MODULES.items():
        app.command(
            name,
            help=f"{about} Options are those of `python -m {module}`.",
            add_help_option=False,
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        )(_becoming(module))


def _becoming(module: str) -> Callable[[typer.Context], None]:
    def become(context: typer.Context) -> None:
        os.execv(sys.executable, [sys.executable, "-m", module, *context.args])

    return become
