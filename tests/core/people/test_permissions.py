from dataclasses import replace

import pytest

from core.people.identity import GUEST, OPEN, Role
from core.people.permissions import LEAST, Action, allows, may, scope


def test_every_action_stands_in_the_table() -> None:
    assert set(LEAST) == set(Action)


@pytest.mark.parametrize("action", list(Action))
def test_a_higher_role_may_all_that_a_lower_one_may(action: Action) -> None:
    found = [allows(role, action) for role in sorted(Role, key=lambda role: role.rank)]
    assert found == sorted(found)
    assert found[-1]


def test_the_roles_are_what_they_say() -> None:
    assert {action for action in Action if allows(Role.VIEWER, action)} == {
        Action.PUBLIC,
        Action.SEE,
        Action.BATCH_READ,
        Action.OWN_ACCOUNT,
    }
    assert allows(Role.MEMBER, Action.BATCH_WRITE)
    assert not allows(Role.MEMBER, Action.TUNE)
    assert {Action.TUNE, Action.SCHEDULE, Action.PAUSE} <= {a for a in Action if allows(Role.OPERATOR, a)}
    assert not any(allows(Role.OPERATOR, action) for action in (Action.TENANTS, Action.KEYS, Action.ACCOUNTS))


def test_before_there_are_accounts_anybody_may_everything_but_have_an_account() -> None:
    assert {action for action in Action if not may(OPEN, action)} == {Action.OWN_ACCOUNT}


def test_a_guest_may_call_the_models_and_nothing_of_the_dashboard() -> None:
    assert may(GUEST, Action.INFER)
    assert not any(may(GUEST, action) for action in (Action.SEE, Action.TUNE, Action.KEYS, Action.OWN_ACCOUNT))


def test_a_key_has_no_account_of_its_own() -> None:
    assert not may(replace(GUEST, key="k", role=Role.ADMIN), Action.OWN_ACCOUNT)
    assert may(replace(GUEST, account="ann", role=Role.VIEWER), Action.OWN_ACCOUNT)


def test_members_see_their_tenants_batches_and_operators_all() -> None:
    assert scope(replace(GUEST, tenant="a", role=Role.MEMBER)) == "a"
    assert scope(replace(GUEST, tenant="a", role=Role.OPERATOR)) is None
