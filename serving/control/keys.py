"""API keys: made, listed, revoked. The key itself is told once, to whoever had it made; its SHA-256 is kept."""

import hashlib
import secrets

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from ingest.contracts.fleet import Key, Role
from ingest.contracts.ids import new_id
from serving.control.errors import ControlError, NotFound
from serving.control.tables import KeyRow

MAX_NAME = 256


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key is to be. Limits hold over all gateways together; None: none."""

    name: str
    roles: tuple[Role, ...]
    train: bool = True
    requests_per_minute: int | None = None
    concurrency: int | None = None


def create(session: Session, wanted: NewKey, now: float) -> tuple[str, str]:
    """A new key: the key itself, and its id. Raises `ControlError`."""
    if not 0 < len(wanted.name) <= MAX_NAME:
        raise ControlError(f"A key needs a name, of at most {MAX_NAME} characters.")
    if not wanted.roles:
        raise ControlError(f"A key needs at least one role: {', '.join(Role)}.")
    for limit in ("requests_per_minute", "concurrency"):
        value = getattr(wanted, limit)
        if value is not None and not 1 <= value < 1 << 31:
            raise ControlError(f"{limit} must be at least 1, or left out: then there is no limit.")
    key, key_id = "el-" + secrets.token_urlsafe(32), new_id("key")
    session.add(
        KeyRow(
            key_id=key_id,
            name=wanted.name,
            digest=hashlib.sha256(key.encode()).hexdigest(),
            roles=[str(role) for role in wanted.roles],
            train=wanted.train,
            requests_per_minute=wanted.requests_per_minute,
            concurrency=wanted.concurrency,
            created_at=now,
        )
    )
    return key, key_id


def revoke(session: Session, key_id: str, now: float) -> None:
    """From now on the key is refused. Raises `NotFound`."""
    row = session.get(KeyRow, key_id)
    if row is None:
        raise NotFound("There is no key with this id: `everloop keys list` (`GET /v1/keys`) shows them.")
    row.revoked_at = row.revoked_at or now


def every(session: Session) -> list[Key]:
    """All keys, the oldest first, revoked ones included."""
    return [
        Key(
            key_id=row.key_id,
            name=row.name,
            digest=row.digest,
            roles=tuple(Role(role) for role in row.roles),
            train=row.train,
            requests_per_minute=row.requests_per_minute,
            concurrency=row.concurrency,
            created_at=row.created_at,
            revoked_at=row.revoked_at,
        )
        for row in session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.key_id))
    ]
