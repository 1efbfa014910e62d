"""`everloop forget`: somebody, or a conversation, removed from everywhere; and the receipts of it."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, utf8, when

if TYPE_CHECKING:
    from ingest.receipts import Receipt

app = typer.Typer(invoke_without_command=True, no_args_is_help=True)

_PATIENCE = 20.0
"""Seconds to wait for gateways to seal what they are writing: they do so every two seconds."""


_EXACTLY = "nothing of this {} was found: a name counts as applications send it, in case, spaces and Unicode form"


@app.callback()
def forget(
    context: typer.Context,
    subject: Annotated[
        str | None, typer.Option(callback=utf8, help="An end user, as the application names it.")
    ] = None,
    session: Annotated[str | None, typer.Option(callback=utf8, help="A session, as the application names it.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Remove an end user, or a session, from log, lake, datasets and reports, for ever.

    Its receipt is complete once nothing holds it any more; until then the scheduler goes on with it.
    """
    if context.invoked_subcommand is not None:
        return
    target, name = ("subject", subject) if subject else ("session", session)
    if not name or (subject and session):
        raise typer.BadParameter("name one of --subject and --session")
    if not yes:
        typer.confirm(f"Remove this {target} for ever?", abort=True, err=True)

    from ingest.contracts.ids import keyed_hash
    from ingest.receipts import ReceiptState
    from pipelines.cli.parts import open_home
    from pipelines.forgetting import Forgetting
    from pipelines.local import workers_of
    from pipelines.stack import addresses, secrets

    found, home = open_home(config)
    addresses.load(home)  # it raises where nothing ever ran
    kept = secrets.load_or_create(home.run / "secrets.json")
    workers = workers_of(found, home)
    try:
        forgetting = Forgetting(found, home, workers)
        asked = forgetting.receipts.request(target, keyed_hash(bytes.fromhex(kept.hash_secret), target, name))
        forgetting.look(_PATIENCE)
        receipt = forgetting.receipts.get(asked.receipt_id)
        _show([receipt], as_json, one=True)
        if receipt.state in (ReceiptState.RETAINED, ReceiptState.COMPLETE) and not receipt.removed:
            print(_EXACTLY.format(target), file=sys.stderr)
    finally:
        workers.close()


@app.command()
def status(
    receipt: Annotated[str | None, typer.Argument(help="One receipt, with all that it says.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """List the receipts, the newest first; or show one."""
    from ingest.receipts import Receipts
    from pipelines.cli.parts import open_home

    home = open_home(config)[1]
    book = Receipts(home.receipts) if home.receipts.exists() or receipt else None
    found = [book.get(receipt)] if book and receipt else book.every() if book else []
    _show(found, as_json, one=receipt is not None)


def _show(found: "list[Receipt]", as_json: bool, one: bool) -> None:
    import msgspec

    if as_json:
        values: Any = [msgspec.to_builtins(receipt) for receipt in found]
        print_json(values[0] if one else values)
        return
    if one:
        [receipt] = found
        removed = ", ".join(f"{count} {name}" for name, count in receipt.removed.items()) or "nothing"
        rows = [
            ("receipt", receipt.receipt_id),
            ("target", receipt.target),
            ("state", receipt.state),
            ("requested", when(receipt.requested_at)),
            ("completed", when(receipt.completed_at)),
            ("waits for", receipt.waits),
            ("removed", removed),
            ("checkpoints that learned from it", ", ".join(receipt.checkpoints) or "none"),
        ]
        print_table(("", ""), rows)
        return
    columns = ("receipt", "target", "state", "requested", "completed", "waits for")
    print_table(
        columns,
        ((r.receipt_id, r.target, r.state, when(r.requested_at), when(r.completed_at), r.waits) for r in found),
    )
