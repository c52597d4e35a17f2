"""Where the files that are no Python lie: beside the installed package, else in the checkout."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def first_of(*candidates: Path) -> Path:
    """Return the first candidate that is a folder, else the last one: whoever opens it names what is missing."""
    return next((path for path in candidates if path.is_dir()), candidates[-1])


STATIC = first_of(CHECKOUT / "web" / "static", CHECKOUT / "static")
TEMPLATES = first_of(CHECKOUT / "web" / "templates", CHECKOUT / "templates")
MIGRATIONS = first_of(CHECKOUT / "core" / "migrations", CHECKOUT / "alembic")
