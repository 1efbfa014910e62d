"""`everloop trace`: from a checkpoint to the turns that it learned from, and from a turn to what learned from it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.loop import PolicyOption
from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, utf8, when

if TYPE_CHECKING:
    from rich.tree import Tree

    from ingest.trace import CheckpointTrace, TurnTrace

_SHOWN = 20
"""Turns of a dataset that a tree shows; `--json` has them all."""


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(trace)


def trace(
    name: Annotated[
        str, typer.Argument(callback=utf8, metavar="CHECKPOINT|TURN", help="A checkpoint's id, or a turn's.")
    ],
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Show what a checkpoint learned from, or what became of a turn."""
    import time

    import msgspec

    from ingest.spool import low_watermark
    from ingest.trace import TraceError, trace_checkpoint, trace_turn
    from pipelines.cli.parts import open_home
    from pipelines.runs import Runs

    found, home = open_home(config)
    places: dict[str, Any] = {"lake": home.lake, "datasets": home.datasets, "checkpoints": home.checkpoints}
    if any(path.parent.name == name for path in home.checkpoints.glob("*/*/manifest.json")):
        one = trace_checkpoint(name, policy, **places)
        if as_json:
            print_json(msgspec.to_builtins(one))
        else:
            _print(_of_checkpoint(one))
        return
    if home.database.exists():
        made = next((run for run in Runs(home.database).history() if run.checkpoint_id == name), None)
        if made is not None:
            told = f"`everloop runs {made.run_id}` tells what became of its run"
            raise TraceError(f'checkpoint "{name}" was never completed, or removed: {told}')
    now = time.time()
    rules = {policy: (s.attribution, s.rewards) for policy, s in found.policies.items()}
    samples = trace_turn(name, **places, rules=rules, now=now, watermark=low_watermark(home.spool, now))
    if as_json:
        print_json(msgspec.to_builtins(samples))
    else:
        for sample in samples:
            _print(_of_turn(sample))


def _print(tree: "Tree") -> None:
    import sys

    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=1 << 10)
    console.print(tree, highlight=False)


def _of_checkpoint(found: "CheckpointTrace") -> "Tree":
    tree = _named(found)
    for ancestor in found.ancestors:
        tree.add(_named(ancestor, "from "))
    if found.before:
        tree.add(_text(f"from checkpoint {found.policy}/{found.before}, whose folder is gone"))
    dataset = found.dataset
    if dataset is None:
        gone = f"dataset {found.dataset_id}: its folder is gone" if found.dataset_id else "no dataset: it was imported"
        tree.add(_text(gone))
        return tree
    gone = f", {dataset.erased} erased since" if dataset.erased else ""
    branch = tree.add(f"dataset {dataset.dataset_id}: {len(dataset.turns)} rows{gone}, cut {when(dataset.cut_at)}")
    versions = ", ".join(f"{table} {version}" for table, version in sorted(dataset.lake_versions.items()))
    lake = branch.add(f"lake versions: {versions}")
    for spool, (first, last) in sorted(dataset.log_ranges.items()):
        spools = lake.add(f"log: spool {spool}, sequences {first} to {last}")
        turns = [turn for turn in dataset.turns if turn.spool_id == spool]
        for turn in turns[:_SHOWN]:
            spools.add(f"{turn.sequence}: turn {turn.turn_id}, sample {turn.sample}, revision {turn.feedback_revision}")
        if len(turns) > _SHOWN:
            spools.add(f"and {len(turns) - _SHOWN} more: --json lists them")
    lost = sum(turn.spool_id is None for turn in dataset.turns)
    if lost:
        lake.add(f"{lost} turns that the lake has let go of")
    return tree


def _of_turn(found: "TurnTrace") -> "Tree":
    from rich.tree import Tree

    tree = Tree(_text(f"turn {found.turn_id}, sample {found.sample}, of policy {found.policy}"))
    tree.add(_text(f"log: spool {found.spool_id}, sequence {found.sequence}; landed {when(found.landed_at)}"))
    tree.add(
        _text(
            f"answered by {', '.join(found.versions) or 'nobody'} on {found.engine_id}, arm {found.arm}, "
            f"finish {found.finish}, {when(found.finished_at)}"
        )
    )
    if found.judged is not None:
        reward = "" if found.judged.reward is None else f", reward {found.judged.reward:g}"
        signals = tree.add(_text(f"state {found.judged.state}{reward}; {len(found.judged.signals)} signals"))
        for s in found.judged.signals:
            signals.add(_text(f"{s.kind} of {s.source} about its {s.target}, {when(s.received_at)}: {s.status}"))
    if not found.datasets:
        tree.add("in no dataset")
    for dataset in found.datasets:
        branch = tree.add(_text(f"dataset {dataset}"))
        for checkpoint in found.checkpoints:
            if checkpoint.learned and checkpoint.dataset_id == dataset:
                branch.add(_named(checkpoint))
    descendants = [checkpoint for checkpoint in found.checkpoints if not checkpoint.learned]
    if descendants:
        branch = tree.add("what went on from there")
        for checkpoint in descendants:
            branch.add(_named(checkpoint))
    return tree


def _named(found: "CheckpointTrace", word: str = "") -> "Tree":
    """A checkpoint with its verdict and how far it got."""
    from rich.tree import Tree

    tree = Tree(_text(f"{word}checkpoint {found.policy}/{found.checkpoint_id}, {found.kind}, {when(found.created_at)}"))
    if found.verdict:
        tree.add(_text(f"verdict: {found.verdict}"))
    if found.rollout:
        tree.add(_text(f"rollout: {found.rollout} ({when(found.rollout_at)})"))
    return tree


def _text(said: str) -> Any:
    from rich.text import Text

    return Text(said)  # in a plain string rich would take [x] for markup
