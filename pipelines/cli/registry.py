"""`everloop versions`, `promote`, `rollback`: the model registry, as a person decides."""

from typing import Annotated

import typer

from pipelines.cli.loop import PolicyOption
from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, when


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (versions, promote, rollback):
        app.command()(command)


def versions(policy: PolicyOption = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """List a policy's versions with their verdicts."""
    from pipelines.by_hand import versions as read
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    rows = read(home, policy_named(found, policy))
    if as_json:
        print_json(rows)
        return
    columns = ("number", "checkpoint_id", "decision", "state", "aliases", "override")
    print_table(
        (*columns, "created"),
        ((*(", ".join(r[c]) if c == "aliases" else r[c] for c in columns), when(r["created_at"])) for r in rows),
    )


def promote(
    checkpoint: Annotated[str, typer.Argument(help="The checkpoint that should serve.")],
    override: Annotated[
        str | None, typer.Option(help="Why it should serve although its verdict is not promote: it is recorded.")
    ] = None,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Move the alias `champion`: the fleet follows within seconds."""
    from pipelines.by_hand import promote as move
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    move(home, policy_named(found, policy), checkpoint, override)
    print(f"{checkpoint} is the champion: the fleet follows, `everloop status` shows it")


def rollback(
    to: Annotated[str | None, typer.Option(help="Which checkpoint; default: the champion before.")] = None,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Go back to a version that served before."""
    from pipelines.by_hand import rollback as move
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    back = move(home, policy_named(found, policy), to)
    print(f"{back} is the champion again: the fleet follows, `everloop status` shows it")
