"""`everloop run`, `runs`, `train`, `evaluate`: the loop, and its stages by hand."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, when

PolicyOption = Annotated[str | None, typer.Option("--policy", "-p", help="The policy; not needed where there is one.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (run, runs, train, evaluate):
        app.command()(command)


def run(
    policy: PolicyOption = None,
    min_turns: Annotated[int | None, typer.Option(min=1, help="Go on with so many turns, this once.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Run the loop once, now, or go on with an unfinished run.

    A scheduler that is running does it, for its workers are warm; otherwise this process does.
    """
    from pipelines.cli.follow import run_now
    from pipelines.cli.parts import open_home, policy_named
    from pipelines.records import Outcome, RunState
    from pipelines.stack.status import run_summary

    found, home = open_home(config)
    done = run_now(
        config, found, home, policy_named(found, policy), min_turns, lambda said: print(said, file=sys.stderr)
    )
    if as_json:
        print_json(run_summary(done))
    else:
        print(f"{done.run_id}: {done.outcome or done.state}: {done.reason}")
    bad = (Outcome.TRAINING_STOPPED, Outcome.ROLLED_BACK)
    good = done.state in (RunState.DONE, RunState.WAITING) and done.outcome not in bad
    if not good:
        raise typer.Exit(1)


def runs(
    run_id: Annotated[str | None, typer.Argument(help="One run, with its stages.")] = None,
    policy: PolicyOption = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="The newest so many.")] = 20,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """List the runs, the newest first; or show one with its stages."""
    import msgspec

    from pipelines.cli.parts import open_home
    from pipelines.runs import Runs

    history = Runs(open_home(config)[1].database)
    if run_id is None:
        found = history.history(policy, count)
        if as_json:
            print_json(msgspec.to_builtins(found))
            return
        rows = (
            (r.run_id, r.policy, r.outcome or r.state, when(r.started_at), when(r.finished_at), r.reason) for r in found
        )
        print_table(("run", "policy", "outcome", "started", "finished", "why"), rows)
        return
    one = history.get(run_id)
    if as_json:
        print_json(msgspec.to_builtins(one))
        return
    print(f"{one.run_id} of {one.policy}: {one.outcome or one.state}: {one.reason}")
    stages = (
        (s.stage, s.state, s.attempts, when(s.started_at), _seconds(s.started_at, s.finished_at), s.error)
        for s in one.stages
    )
    print_table(("stage", "state", "attempts", "started", "seconds", "error"), stages)


def train(
    dataset: Annotated[str, typer.Argument(help="A dataset's id, as in datasets/<policy>/.")],
    parent: Annotated[str | None, typer.Option(help="The checkpoint to continue from; default: the base.")] = None,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Train on a dataset by hand. The checkpoint is not registered and serves nobody."""
    from pipelines.by_hand import train as work
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    manifest = work(found, home, policy_named(found, policy), dataset, parent)
    _show(manifest, as_json, ("checkpoint_id", "parent", "dataset_id", "step", "realised_update"))


def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="The challenger.")],
    champion: Annotated[str | None, typer.Option(help="What it is compared with; default: what serves.")] = None,
    policy: PolicyOption = None,
    output: Annotated[Path | None, typer.Option(help="Folder for verdict, samples and report.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a checkpoint by hand, on the running stack. The verdict is shown, not recorded: it promotes nothing."""
    from pipelines.by_hand import evaluate as work
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    verdict = work(found, home, policy_named(found, policy), checkpoint, champion, output)
    _show(
        verdict, as_json, ("challenger", "champion", "decision", "difference", "low", "high", "confidence", "reasons")
    )


def _show(value: dict, as_json: bool, keys: tuple[str, ...]) -> None:
    if as_json:
        print_json(value)
    else:
        print_table(("", ""), ((key, value.get(key)) for key in keys))


def _seconds(start: float, end: float | None) -> str:
    return "" if end is None else f"{end - start:.1f}"
