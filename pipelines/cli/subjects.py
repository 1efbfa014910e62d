"""`everloop subjects`: end users who do not want to be learned from."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, when

app = typer.Typer(no_args_is_help=True)
UserArgument = Annotated[str, typer.Argument(help="The end user, as the application names it in its requests.")]


@app.command("opt-out")
def opt_out(user: UserArgument, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Do not train on what this user says from now on. Only a keyed hash of the name is kept."""
    from pipelines.cli.parts import control_of

    control, subject = control_of(config), _subject(config, user)
    control.opt_out(subject)
    print(f"{subject} has opted out: its turns are recorded as not trainable within two seconds")


@app.command("opt-in")
def opt_in(user: UserArgument, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Take an opt-out back, for what this user says from now on."""
    from pipelines.cli.parts import control_of

    control, subject = control_of(config), _subject(config, user)
    control.opt_in(subject)
    print(f"{subject} has opted in again")


@app.command("list")
def list_(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """List who opted out, by the keyed hash that their turns carry."""
    from pipelines.cli.parts import control_of

    found = control_of(config).opted_out()
    if as_json:
        print_json(found)
    else:
        print_table(("subject", "since"), ((row["subject"], when(row["since"])) for row in found))


def _subject(config: Path, user: str) -> str:
    """The name that turns give to the user: hashed here, so that it leaves this process as a hash only."""
    from ingest.contracts.ids import keyed_hash
    from pipelines.cli.parts import open_home
    from pipelines.stack import secrets

    kept = secrets.load_or_create(open_home(config)[1].run / "secrets.json")
    return keyed_hash(bytes.fromhex(kept.hash_secret), "subject", user)
