"""Which names tenants, keys and accounts may have, and other texts that people give."""

import re
from collections.abc import Iterable

from core.errors import InvalidValue
from core.lanes import Lane
from core.people.identity import Role

LONGEST_GLOB = 200
MOST_GLOBS = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,127}")


def check_name(field: str, name: str) -> str:
    """Return the name of a tenant or key. Raises InvalidValue."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(field, "must be 1 to 64 letters, digits, dots, dashes or underscores")
    return name


def account_name(name: str) -> str:
    """Return an account's name as it is stored, in small letters. Raises InvalidValue."""
    small = name.strip().lower()
    if not _ACCOUNT.fullmatch(small):
        raise InvalidValue("name", "must be 1 to 128 letters, digits or any of . _ @ + -")
    return small


def check_globs(field: str, globs: Iterable[str]) -> tuple[str, ...]:
    """Return globs of models. Raises InvalidValue."""
    found = tuple(dict.fromkeys(glob.strip() for glob in globs if glob.strip()))
    if len(found) > MOST_GLOBS or any(len(glob) > LONGEST_GLOB or not glob.isprintable() for glob in found):
        raise InvalidValue(field, f"must be at most {MOST_GLOBS} names or globs such as llama-*")
    return found or ("*",)


def check_lane(field: str, value: str) -> Lane:
    """Return the lane of that name. Raises InvalidValue."""
    if value not in tuple(Lane):
        raise InvalidValue(field, "must be interactive or batch")
    return Lane(value)


def check_role(field: str, value: str) -> Role:
    """Return the role of that name. Raises InvalidValue."""
    if value not in tuple(Role):
        raise InvalidValue(field, f"must be one of {', '.join(Role)}")
    return Role(value)
