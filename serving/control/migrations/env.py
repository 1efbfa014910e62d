"""Alembic's environment: migrates the connection that `serving.control.database` hands over."""

from alembic import context

from serving.control.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
