"""The cookie by which a browser shows its session."""

from urllib.parse import urlsplit

from starlette.responses import Response

from core.people.sign_in import SignedIn
from web.headers import SESSION_COOKIE


def let_in(response: Response, signed_in: SignedIn, *, https: bool) -> None:
    """Give the browser its session: out of scripts' reach, not sent along from other sites, over https where it is."""
    session = signed_in.session
    response.set_cookie(
        SESSION_COOKIE,
        signed_in.cookie,
        max_age=int((session.expires_at - session.created_at).total_seconds()),
        path="/",
        secure=https,
        httponly=True,
        samesite="lax",
    )


def let_out(response: Response, *, https: bool) -> None:
    """Make the browser forget its session."""
    response.delete_cookie(SESSION_COOKIE, path="/", secure=https, httponly=True, samesite="lax")


def way_on(text: str) -> str:
    """Return where to go after the sign-in: `text` if it is a page of this site, else the first page."""
    parts = urlsplit(text)
    own = text.startswith("/") and not parts.scheme and not parts.netloc and "\\" not in text and text.isprintable()
    return text if own and len(text) < 2000 and not text.startswith(("//", "/sign-in", "/ui/")) else "/"
