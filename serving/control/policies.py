"""Policies: what they are, which version they should serve, how that version behaves when loaded cold."""

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from ingest.contracts.fleet import Policy, Redaction, Reference, Version
from serving.control.errors import ControlError, NotFound, ReferenceDiffers
from serving.control.tables import PolicyRow, ReferenceRow
from serving.fleet.swap import contradiction
from serving.redaction import RedactionError, Redactor

CAPTURE = ("required", "best_effort")


def put(session: Session, policy: Policy) -> None:
    """Makes a policy, or replaces its settings. The versions of one that exists are left as they are."""
    if policy.capture not in CAPTURE:
        raise ControlError(f"capture must be one of: {', '.join(CAPTURE)}.")
    if policy.redaction is not None:
        try:
            Redactor(policy.redaction, load=False)
        except RedactionError as error:
            raise ControlError(f"{error}.") from None
    row = session.get(PolicyRow, policy.name)
    if row is None:
        row = PolicyRow(
            name=policy.name,
            desired=msgspec.to_builtins(policy.desired),
            under_evaluation=msgspec.to_builtins(policy.under_evaluation),
        )
        session.add(row)
    row.capture = policy.capture
    row.sampling = dict(policy.sampling)
    row.redaction = msgspec.to_builtins(policy.redaction)


def set_desired(session: Session, name: str, version: Version) -> None:
    """The version that the fleet is to converge to."""
    _row(session, name).desired = msgspec.to_builtins(version)


def set_under_evaluation(session: Session, name: str, version: Version | None) -> None:
    """The version that evaluation engines are to load; None: none."""
    _row(session, name).under_evaluation = msgspec.to_builtins(version)


def put_reference(session: Session, name: str, reference: Reference) -> None:
    """How a cold load of a version behaves on one build. The first word counts: later loads must behave as it says.

    Raises `ReferenceDiffers` where one does not: its weights are damaged, or they are not this version's.
    """
    _row(session, name)
    row = session.get(ReferenceRow, (name, reference.version, reference.build))
    if row is None:
        session.add(
            ReferenceRow(
                policy=name, version=reference.version, build=reference.build, body=msgspec.to_builtins(reference)
            )
        )
    elif problem := contradiction(reference, msgspec.convert(row.body, Reference)):
        raise ReferenceDiffers(
            f"This load of {reference.version} is not what the first one on {reference.build} was: {problem}."
        )


def reference(session: Session, name: str, version: str, build: str) -> Reference | None:
    """How a cold load of a version behaves on one build, None where none was measured."""
    row = session.get(ReferenceRow, (name, version, build))
    return None if row is None else msgspec.convert(row.body, Reference)


def get(session: Session, name: str) -> Policy:
    """A policy by name. Raises `NotFound`."""
    return _policy(_row(session, name))


def every(session: Session) -> list[Policy]:
    """All policies, by name."""
    return [_policy(row) for row in session.scalars(select(PolicyRow).order_by(PolicyRow.name))]


def _row(session: Session, name: str) -> PolicyRow:
    row = session.get(PolicyRow, name)
    if row is None:
        raise NotFound("There is no policy with this name: PUT it first.")
    return row


def _policy(row: PolicyRow) -> Policy:
    return Policy(
        name=row.name,
        desired=msgspec.convert(row.desired, Version),
        under_evaluation=msgspec.convert(row.under_evaluation, Version | None),
        capture=row.capture,
        sampling=dict(row.sampling),
        redaction=msgspec.convert(row.redaction, Redaction | None),
    )
