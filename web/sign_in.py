"""The pages of signing in and out, of the set-up link, and of one's own account."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core.errors import InvalidValue, RequestError
from core.people.identity import ASKING
from web import people_views as views
from web.gate import session_cookie
from web.people import admit, browser_of, by_of, is_https, people_of, runtime_of, time_of
from web.people_contexts import AccountPage, SetUpPage, SignInPage
from web.session_cookie import let_out, way_on
from web.ui import form_values, html, see_other, ui_of


async def page(request: Request) -> Response:
    """GET /sign-in: the form; `next` is where to go afterwards."""
    return _page(request, next=request.query_params.get("next", "/"))


async def sign_in(request: Request) -> Response:
    """POST /ui/sign-in: 303 to `next` when signed in, 401 for a wrong name or password, 429 after too many."""
    values = await form_values(request)
    name, target = values.get("name", ""), values.get("next", "/")
    try:
        signed_in = await people_of(request).sign_in.with_password(
            name, values.get("password", ""), browser_of(request)
        )
    except RequestError as error:
        return _page(request, name=name[:128], next=target, error=error)
    return await admit(request, signed_in, target)


async def sign_out(request: Request) -> Response:
    """POST /ui/sign-out: the session is over."""
    people = people_of(request)
    identity = people.ring.session(session_cookie(request.scope))
    if identity is not None:
        ASKING.set(identity)
        found = [each for each in (await people.store.everyone()).sessions if each.id == identity.session]
        await people.roster.end_sessions(found, by=by_of({}))
        await people.ring.refresh()
    answer = see_other("/sign-in")
    let_out(answer, https=is_https(request))
    return answer


async def set_up_page(request: Request) -> Response:
    """GET /setup: what the set-up link leads to."""
    token = request.query_params.get("token", "")
    if not await people_of(request).sign_in.may_set_up(token):
        return _void(request)
    return _set_up(request, token, {}, {})


async def set_up(request: Request) -> Response:
    """POST /ui/setup: make the first admin, signed in at once; the link is used up."""
    values = await form_values(request)
    token = values.get("token", "")
    try:
        _check_again(values)
        signed_in = await people_of(request).sign_in.set_up(
            token, values.get("name", ""), values.get("password", ""), browser_of(request)
        )
    except InvalidValue as error:
        return _set_up(request, token, values, _errors(error, {"name", "password", "again"}), 422)
    except RequestError:
        return _void(request)
    return await admit(request, signed_in, "/")


async def own_page(request: Request) -> Response:
    """GET /account: one's own sessions and password."""
    told = {"password": "The password is changed.", "out": "Signed out."}
    return html(await _own(request, {}, told.get(request.query_params.get("done", ""), "")))


async def change_password(request: Request) -> Response:
    """POST /ui/account/password: a new password of one's own, which signs out everywhere else."""
    values, name = await form_values(request), ASKING.get().account or ""
    try:
        _check_again(values)
        signed_in = await people_of(request).sign_in.change_password(
            name, values.get("old", ""), values.get("password", ""), browser_of(request)
        )
    except InvalidValue as error:
        return html(await _own(request, _errors(error, {"password", "again"})), 422)
    except RequestError as error:
        message = "That is not your password." if error.status == 401 else error.message
        return html(await _own(request, {"old": message}), error.status if error.status == 429 else 422)
    return await admit(request, signed_in, "/account?done=password")


async def end_own(request: Request) -> Response:
    """POST /ui/account/sign-out: end one of one's own sessions."""
    wanted, people = (await form_values(request)).get("session", ""), people_of(request)
    own = ASKING.get().account
    found = [each for each in (await people.store.everyone()).sessions if (each.id, each.account) == (wanted, own)]
    await people.roster.end_sessions(found, by=by_of({}))
    await people.ring.refresh()
    return see_other("/account", done="out")


def _page(request: Request, *, name: str = "", next: str, error: RequestError | None = None) -> Response:
    ring, settings = people_of(request).ring, runtime_of(request).settings
    answer = html(
        SignInPage(
            **ui_of(request).shell("", "Sign in", refresh=False),
            name=name,
            next=way_on(next),
            problem=error.message if error else "",
            provider=settings.oidc.issuer is not None,
            open=ring.pages_open,
        ),
        error.status if error else 200,
    )
    if error is not None and error.retry_after is not None:
        answer.headers["retry-after"] = str(error.retry_after)
    return answer


def _set_up(
    request: Request, token: str, values: Mapping[str, str], errors: dict[str, str], status: int = 200
) -> Response:
    shell = ui_of(request).shell("", "Set up", refresh=False)
    return html(SetUpPage(**shell, token=token, values={"name": values.get("name", "")}, errors=errors), status)


def _void(request: Request) -> Response:
    message = "This link was used already, or is more than a day old. A new one: tidegate serve --setup"
    return ui_of(request).error_page("This link is void", message, 403, "/sign-in")


async def _own(request: Request, errors: dict[str, str], told: str = "") -> AccountPage:
    asking, (now, zone) = ASKING.get(), time_of(request)
    everyone = await people_of(request).store.everyone()
    account = next((each for each in everyone.accounts if each.name == asking.account), None)
    own = [each for each in everyone.sessions if each.account == asking.account]
    return AccountPage(
        **ui_of(request).shell("", asking.account or "", refresh=False),
        name=asking.account or "",
        role=asking.role.value,
        tenant=asking.tenant,
        local=account is not None and account.password is not None,
        sessions=views.session_lines(own, here=asking.session, now=now, zone=zone),
        errors=errors,
        told=told,
        zone=runtime_of(request).schedule.zone,
    )


def _check_again(values: Mapping[str, str]) -> None:
    if values.get("password", "") != values.get("again", ""):
        raise InvalidValue("again", "is not the same as above")


def _errors(error: InvalidValue, fields: set[str]) -> dict[str, str]:
    told = f"{error.message[:1].upper()}{error.message[1:]}."
    return {error.field if error.field in fields else "form": told}


ROUTES: list[BaseRoute] = [
    Route("/sign-in", page),
    Route("/ui/sign-in", sign_in, methods=["POST"]),
    Route("/ui/sign-out", sign_out, methods=["POST"]),
    Route("/setup", set_up_page),
    Route("/ui/setup", set_up, methods=["POST"]),
    Route("/account", own_page),
    Route("/ui/account/password", change_password, methods=["POST"]),
    Route("/ui/account/sign-out", end_own, methods=["POST"]),
]
