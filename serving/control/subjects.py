"""End users who opted out of training, known by keyed hash only: control never learns whom a hash names."""

import re

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from serving.control.errors import ControlError, NotFound
from serving.control.tables import OptedOutRow

_SUBJECT = re.compile(r"[0-9a-f]{32}")


class OptedOut(msgspec.Struct, frozen=True):
    """A subject on the list, and since when (Unix seconds)."""

    subject: str
    since: float


def opt_out(session: Session, subject: str, now: float) -> None:
    """From now on the subject's turns are not trained on. Said twice, the first time counts. Raises `ControlError`."""
    if not _SUBJECT.fullmatch(subject):
        raise ControlError("A subject is named by its keyed hash, 32 hex digits, as its turns name it.")
    if session.get(OptedOutRow, subject) is None:
        session.add(OptedOutRow(subject=subject, since=now))


def opt_in(session: Session, subject: str) -> None:
    """The subject's turns of from now on may be trained on again. Raises `NotFound`."""
    row = session.get(OptedOutRow, subject)
    if row is None:
        raise NotFound("This subject has not opted out: `GET /v1/opted_out` lists those who have.")
    session.delete(row)


def every(session: Session) -> list[OptedOut]:
    """All who opted out, the longest ago first."""
    rows = session.scalars(select(OptedOutRow).order_by(OptedOutRow.since, OptedOutRow.subject))
    return [OptedOut(row.subject, row.since) for row in rows]
