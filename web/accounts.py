"""The page of accounts and sessions, for admins: make, change, disable, set passwords, sign others out."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core.errors import InvalidValue, NotFound
from core.people import asked
from core.people.identity import ASKING, Role
from core.people.names import check_role
from core.people.store import Everyone
from core.people.tenants import DEFAULT
from web import people_views as views
from web.people import admit, browser_of, by_of, people_of, reason_required, runtime_of, time_of
from web.people_contexts import AccountForm, AccountsPage
from web.ui import form_values, html, see_other, ui_of

_TOLD = {"made": "The account is there.", "changed": "Stored. It is in force.", "out": "Signed out."}


async def page(request: Request) -> Response:
    """GET /accounts: who may sign in and who is; `edit` in the query opens a form, for a new account where empty."""
    everyone = await people_of(request).store.everyone()
    query = request.query_params
    form = None
    if "edit" in query or not everyone.accounts:
        try:
            form = _form(request, everyone, query.get("edit", ""))
        except NotFound as error:
            return ui_of(request).not_found(error)
    return html(_page(request, everyone, form, _TOLD.get(query.get("done", ""), "")))


async def create(request: Request) -> Response:
    """POST /ui/accounts: 303 when made; who makes the first account, from an open page, is signed in with it."""
    values, people = await form_values(request), people_of(request)
    password = values.get("password", "") or None
    first = not (await people.store.everyone()).accounts
    try:
        role = check_role("role", values.get("role", ""))
        if first and (role is not Role.ADMIN or password is None):
            raise InvalidValue("role", "must be admin, with a password, for the first account")
        account = await people.roster.create(
            values.get("name", ""),
            role=role,
            password=password,
            tenant=values.get("tenant", "") or DEFAULT,
            by=by_of(values),
            first=first,
        )
    except InvalidValue as error:
        return await _again(request, "", values, error)
    await people.ring.refresh()
    if first and password is not None:
        signed_in = await people.sign_in.with_password(account.name, password, browser_of(request))
        return await admit(request, signed_in, "/accounts?done=made")
    return see_other("/accounts", done="made")


async def change(request: Request) -> Response:
    """POST /ui/accounts/change: role and team, or `disabled`: "yes", or empty for not any more."""
    values = await form_values(request)
    name = values.get("name", "")
    given: dict[str, object] = {field: values[field] for field in ("role", "tenant") if field in values}
    if "disabled" in values:
        given["disabled"] = values["disabled"] == "yes"
    try:
        await people_of(request).roster.change(name, asked.account_patch(given), by=by_of(values))
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _again(request, name, values, error)
    await people_of(request).ring.refresh()
    return see_other("/accounts", done="changed")


async def set_password(request: Request) -> Response:
    """POST /ui/accounts/password: a new password, which signs out everywhere."""
    values = await form_values(request)
    name = values.get("name", "")
    try:
        await people_of(request).roster.set_password(name, values.get("password", ""), by=by_of(values))
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _again(request, name, values, InvalidValue(f"new_{error.field}", error.message))
    await people_of(request).ring.refresh()
    return see_other("/accounts", done="changed")


async def sign_out(request: Request) -> Response:
    """POST /ui/accounts/sign-out: end one session, whoever's; 422 where a reason is missing."""
    values, people = await form_values(request), people_of(request)
    everyone = await people.store.everyone()
    found = [each for each in everyone.sessions if each.id == values.get("session", "")]
    try:
        await people.roster.end_sessions(found, by=by_of(values))
    except InvalidValue as error:
        return html(_page(request, everyone, None, refused=f"{error.field.capitalize()} {error.message}."), 422)
    await people.ring.refresh()
    return see_other("/accounts", done="out")


def _page(
    request: Request, everyone: Everyone, form: AccountForm | None, told: str = "", refused: str = ""
) -> AccountsPage:
    ui, (now, zone) = ui_of(request), time_of(request)
    return AccountsPage(
        **ui.shell("Accounts", "Accounts", refresh=False),
        accounts=views.account_lines(everyone.accounts, now=now, zone=zone),
        sessions=views.session_lines(everyone.sessions, here=ASKING.get().session, now=now, zone=zone),
        form=form,
        told=told,
        refused=refused,
        reason_required=reason_required(request),
        zone=runtime_of(request).schedule.zone,
    )


def _form(
    request: Request,
    everyone: Everyone,
    name: str,
    *,
    typed: Mapping[str, str] | None = None,
    errors: dict[str, str] | None = None,
) -> AccountForm:
    """Return the form of an account, of a new one for ""; with what was typed, if anything. Raises NotFound."""
    account = next((each for each in everyone.accounts if each.name == name), None)
    if name and account is None:
        raise NotFound("account", name)
    first = not everyone.accounts
    start = {
        "role": account.role if account else Role.ADMIN if first else Role.MEMBER,
        "tenant": account.tenant if account else DEFAULT,
    }
    values = {**start, **(typed or {})}
    return AccountForm(
        original=name,
        values=dict(values),
        roles=views.roles(values["role"]),
        tenants=views.names((tenant.name for tenant in everyone.tenants), values["tenant"]),
        errors=errors or {},
        disabled=account is not None and not account.active,
        reason_required=reason_required(request),
    )


async def _again(request: Request, name: str, values: Mapping[str, str], error: InvalidValue) -> Response:
    """Answer with the form as it was typed."""
    told = f"{error.message[:1].upper()}{error.message[1:]}."
    fields = ("name", "role", "tenant", "password", "new_password", "new_reason", "reason")
    everyone = await people_of(request).store.everyone()
    errors = {error.field: told} if error.field in fields else {"form": f"{error.field}: {told}"}
    try:
        form = _form(request, everyone, name, typed=values, errors=errors)
    except NotFound as gone:
        return ui_of(request).not_found(gone)
    return html(_page(request, everyone, form), 422)


ROUTES: list[BaseRoute] = [
    Route("/accounts", page),
    Route("/ui/accounts", create, methods=["POST"]),
    Route("/ui/accounts/change", change, methods=["POST"]),
    Route("/ui/accounts/password", set_password, methods=["POST"]),
    Route("/ui/accounts/sign-out", sign_out, methods=["POST"]),
]
