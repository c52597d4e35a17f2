"""Runs the migrations on a connection given by the caller, or on the one named by `alembic -x url=...`."""

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlmodel import SQLModel

import core.models  # noqa: F401  (registers the tables)


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = create_engine(context.get_x_argument(as_dictionary=True)["url"])
    with engine.connect() as connection:
        run(connection)
    engine.dispose()
