"""`make demo`: the loop on a small real model, from an empty folder to a report, in about fifteen minutes.

- `machine`: can it run here; `model`: the model, out of its package
- `main`: the order of things: check, prepare, stack up, play, report, stay up
- `play`: the plot; `watch`: the runs and the fleet, as they go; `measure`: the final questions, before and after
- `show`: what one sees meanwhile
- `facts` → `report` → `page`, `picture`, `summary`: pure functions from what happened to what is said of it

Invariant: a promise that was not kept is a sentence and exit code 1. Nothing is shown better than it was.
"""

import argparse
import os
from pathlib import Path

HELP = """The loop on a small real model, in about fifteen minutes; then it stays up until Ctrl-C. In the environment:
DEMO=once ends by itself, DEMO_CYCLES is the number of cycles (default: 3). It is run in a checkout: `demo/` and
`.cache/` are taken from the working folder."""


def main() -> None:
    """`everloop demo`: raises `SystemExit` with 0, or with 1 where something failed, or 2 for wrong usage."""
    # It takes no options, but `--help` must not start a quarter of an hour of work.
    argparse.ArgumentParser(prog="everloop demo", description=HELP).parse_args()
    from pipelines.demo.main import Options, run

    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # its client would write into the live view
    raise SystemExit(run(Options.read(os.environ, Path.cwd())))
