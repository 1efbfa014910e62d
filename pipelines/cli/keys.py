"""`everloop keys`: what applications authenticate with."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, when

app = typer.Typer(no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    role: Annotated[
        list[str], typer.Option("--role", help="inference, feedback, admin or evaluation; may be repeated.")
    ] = ["inference", "feedback"],  # noqa: B006
    train: Annotated[bool, typer.Option(help="Whether its traffic may be trained on.")] = True,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Over all gateways together; default: no limit.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in progress, over all gateways together; default: no limit.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Create a key. It is shown now and never again."""
    from ingest.contracts.fleet import Role

    for unknown in sorted(set(role) - set(Role)):
        raise typer.BadParameter(f'"{unknown}" is none of {", ".join(Role)}', param_hint="--role")
    made = _control(config).create_key(name, role, train, requests_per_minute, concurrency)
    if as_json:
        print_json(made)
    else:
        print(made["key"])


@app.command("list")
def list_(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """List the keys, without what they are."""
    found = _control(config).list_keys()
    if as_json:
        print_json(found)
        return
    rows = (
        (
            k["key_id"],
            k["name"],
            ", ".join(k["roles"]),
            k.get("train", True),
            k.get("requests_per_minute"),
            k.get("concurrency"),
            when(k["created_at"]),
            when(k.get("revoked_at")),
        )
        for k in found
    )
    print_table(("key id", "name", "roles", "train", "per minute", "concurrency", "created", "revoked"), rows)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Its id, as `everloop keys list` shows it.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Revoke a key: the gateways refuse it within two seconds."""
    _control(config).revoke_key(key_id)
    print(f"{key_id} is revoked")


def _control(config: Path) -> Any:
    from pipelines.cli.parts import control_of

    return control_of(config)
