"""The version of its contract that a value keeps: its field `schema`.

It rises when older code would misread the value; a new field with a default needs no rise. Older code does not guess:
it refuses the value with a `ContractError`, and says that a newer version wrote it.
"""

from typing import Any

import msgspec

from ingest.contracts.errors import ContractError


def version(number: int) -> Any:
    """The field `schema` of a contract, now at `number`. It is always written, also where defaults are left out: what
    is not written would change its meaning with the next number."""
    return msgspec.field(default_factory=lambda: number)


def current(kind: type[msgspec.Struct]) -> int:
    """The version of a contract that this code writes."""
    [field] = (field for field in msgspec.structs.fields(kind) if field.name == "schema")
    return field.default_factory()


def refuse_newer(what: str, found: int, known: int) -> None:
    """Raises `ContractError` where a value's version is above the one that is known."""
    if found > known:
        raise ContractError(
            f"a newer version of everloop wrote it: {what} of schema {found}, and this one reads up to {known}"
        )
