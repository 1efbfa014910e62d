"""The control database's tables. What they hold is in `ingest.contracts.fleet`; migrations make them."""

from sqlalchemy import JSON, Boolean, Float, Integer, String, Text, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """All tables."""


class RevisionRow(Base):
    """One row: the snapshot's revision, raised in the transaction that changes anything in it."""

    __tablename__ = "revision"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    value: Mapped[int] = mapped_column(Integer)


class KeyRow(Base):
    """An API key, by its digest."""

    __tablename__ = "keys"
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(256))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    roles: Mapped[list] = mapped_column(JSON)
    train: Mapped[bool] = mapped_column(Boolean)
    requests_per_minute: Mapped[int | None] = mapped_column(Integer)
    concurrency: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)


class PolicyRow(Base):
    """A policy: its settings, and the versions it should serve and evaluate."""

    __tablename__ = "policies"
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    desired: Mapped[dict] = mapped_column(JSON)
    under_evaluation: Mapped[dict | None] = mapped_column(JSON)
    capture: Mapped[str] = mapped_column(String(32))
    sampling: Mapped[dict] = mapped_column(JSON)
    redaction: Mapped[dict | None] = mapped_column(JSON)


class OptedOutRow(Base):
    """A subject whose turns must not be trained on, by the keyed hash that turns carry."""

    __tablename__ = "opted_out"
    subject: Mapped[str] = mapped_column(String(64), primary_key=True)
    since: Mapped[float] = mapped_column(Float)


class EngineRow(Base):
    """An engine as its last heartbeat told, and the version it was told to serve."""

    __tablename__ = "engines"
    engine_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    policy: Mapped[str] = mapped_column(String(256), index=True)
    url: Mapped[str] = mapped_column(Text)
    token: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(32))
    version: Mapped[str] = mapped_column(String(256))
    build: Mapped[str] = mapped_column(Text)
    max_model_len: Mapped[int] = mapped_column(Integer)
    media: Mapped[bool] = mapped_column(Boolean, server_default=false())
    error: Mapped[str] = mapped_column(Text)
    refusal: Mapped[dict | None] = mapped_column(JSON)
    target: Mapped[dict | None] = mapped_column(JSON)


class ReferenceRow(Base):
    """How a cold load behaves, by version and build."""

    __tablename__ = "references_"
    policy: Mapped[str] = mapped_column(String(256), primary_key=True)
    version: Mapped[str] = mapped_column(String(256), primary_key=True)
    build: Mapped[str] = mapped_column(String(512), primary_key=True)
    body: Mapped[dict] = mapped_column(JSON)


class SwapRow(Base):
    """One swap of one engine."""

    __tablename__ = "swaps"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    policy: Mapped[str] = mapped_column(String(256), index=True)
    started_at: Mapped[float] = mapped_column(Float, index=True)
    body: Mapped[dict] = mapped_column(JSON)
