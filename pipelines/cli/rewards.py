"""`everloop rewards`: why a turn got the reward that it has. It works while nothing runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, utf8, when

if TYPE_CHECKING:
    from ingest.explain import Explanation

app = typer.Typer(no_args_is_help=True)


@app.callback()
def rewards() -> None:
    """Rewards of turns."""


@app.command()
def explain(
    turn: Annotated[str, typer.Argument(callback=utf8, help="The turn's id, as its caller got it.")],
    sample: Annotated[int, typer.Option(min=0, help="Which of its samples.")] = 0,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Show a turn's state and reward, and what each signal contributed."""
    import time

    import msgspec

    from ingest.explain import explain as explained
    from ingest.spool import low_watermark
    from pipelines.cli.parts import open_home

    found, home = open_home(config)
    now = time.time()
    told = explained(
        home.lake,
        turn,
        sample,
        rules={name: (policy.attribution, policy.rewards) for name, policy in found.policies.items()},
        datasets=home.datasets,
        now=now,
        watermark=low_watermark(home.spool, now),
    )
    if as_json:
        print_json(msgspec.to_builtins(told))
    else:
        _print(told)


def _print(told: "Explanation") -> None:
    print(f"turn {told.turn_id}, sample {told.sample}, of policy {told.policy}: {told.state}")
    if told.reward is None:
        print("no reward: no signal counted")
    else:
        clipped = "" if told.reward == told.total else f" ({told.total:g}, clipped to ± {told.limit:g})"
        print(f"reward {told.reward:g}{clipped}, revision {told.revision}")
    if told.dataset_id is not None:
        print(f"in dataset {told.dataset_id}, weight {told.weight:g}")
    if told.signals:
        print_table(
            ("received", "kind", "value", "source", "target", "status", "number", "counts"),
            (
                (
                    when(signal.received_at),
                    signal.kind,
                    "" if signal.value is None else f"{signal.value:g}",
                    signal.source,
                    signal.target,
                    signal.status,
                    "" if signal.number is None else f"{signal.number:g}",
                    f"{signal.contribution:g}",
                )
                for signal in told.signals
            ),
        )
