"""A small OpenID Connect provider, run as a process of its own: `python tests/oidc_provider.py SOCKET_FD ADDRESS`.

It approves whoever asks, as the person that `POST /next` names, and can misbehave in one way at a time.
"""

import base64
import hashlib
import secrets
import socket
import sys
import time
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "tidegate", "s3cret/with:odd=signs"


class State:
    """What the provider knows: its key, the codes given out, and who comes next with what fault."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key = new_key()
        self.codes: dict[str, dict[str, Any]] = {}
        self.person: dict[str, Any] = {"sub": "1", "preferred_username": "ann"}
        self.user_info: dict[str, Any] = {}
        self.fault = ""


def new_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})


async def configuration(request: Request) -> Response:
    issuer = request.app.state.kept.issuer
    told = "http://127.0.0.1:1" if request.app.state.kept.fault == "issuer" else issuer
    return JSONResponse(
        {
            "issuer": told,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "userinfo_endpoint": f"{issuer}/userinfo",
            "jwks_uri": f"{issuer}/jwks",
            "id_token_signing_alg_values_supported": ["RS256"],
        }
    )


async def jwks(request: Request) -> Response:
    return JSONResponse({"keys": [request.app.state.kept.key.as_dict(private=False)]})


async def authorize(request: Request) -> Response:
    kept, query = request.app.state.kept, dict(request.query_params)
    wanted = ("client_id", "redirect_uri", "state", "nonce", "code_challenge")
    if any(not query.get(name) for name in wanted) or query.get("code_challenge_method") != "S256":
        return JSONResponse({"error": "invalid_request"}, 400)
    if query["client_id"] != CLIENT or query["response_type"] != "code" or "openid" not in query["scope"].split():
        return JSONResponse({"error": "invalid_client"}, 400)
    if kept.fault == "denied":
        return RedirectResponse(
            f"{query['redirect_uri']}?{urlencode({'error': 'access_denied', 'state': query['state']})}"
        )
    code = secrets.token_urlsafe(16)
    kept.codes[code] = query
    return RedirectResponse(f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}")


async def token(request: Request) -> Response:
    kept = request.app.state.kept
    form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
    kind, _, shown = request.headers.get("authorization", "").partition(" ")
    user, _, password = base64.b64decode(shown or "").decode().partition(":")
    if kind != "Basic" or (unquote(user), unquote(password)) != (CLIENT, SECRET):
        return JSONResponse({"error": "invalid_client"}, 401)
    asked = kept.codes.pop(form.get("code", ""), None)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=")
    if asked is None or asked["code_challenge"] != challenge.decode() or asked["redirect_uri"] != form["redirect_uri"]:
        return JSONResponse({"error": "invalid_grant"}, 400)
    access = secrets.token_urlsafe(16)
    body = {"access_token": access, "token_type": "Bearer", "expires_in": 60, "id_token": id_token(kept, asked)}
    return JSONResponse(body)


def id_token(kept: State, asked: dict[str, Any]) -> str:
    now, fault = int(time.time()), kept.fault
    claims = {
        "iss": kept.issuer if fault != "token issuer" else "http://evil.example",
        "aud": CLIENT if fault != "audience" else "another",
        "iat": now,
        "exp": now + 60 if fault != "expired" else now - 3600,
        "nonce": asked["nonce"] if fault != "nonce" else "replayed",
        **kept.person,
    }
    if fault == "unsigned":
        parts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b'{"alg":"none"}', jwt_body(claims))]
        return ".".join([*parts, ""])
    if fault == "shared secret":
        from joserfc.jwk import OctKey

        return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET.ljust(32, "x")))
    key = new_key() if fault == "signature" else kept.key
    return jwt.encode({"alg": "RS256", "kid": kept.key.kid}, claims, key)


def jwt_body(claims: dict[str, Any]) -> bytes:
    import json

    return json.dumps(claims).encode()


async def userinfo(request: Request) -> Response:
    if not request.headers.get("authorization", "").startswith("Bearer "):
        return JSONResponse({"error": "invalid_token"}, 401)
    return JSONResponse({"sub": request.app.state.kept.person["sub"], **request.app.state.kept.user_info})


async def coming(request: Request) -> Response:
    """POST /next: who is approved from now on, with which fault; `rotate` makes a new signing key."""
    kept, given = request.app.state.kept, await request.json()
    kept.person = given.get("person", kept.person)
    kept.user_info = given.get("user_info", {})
    kept.fault = given.get("fault", "")
    if given.get("rotate"):
        kept.key = new_key()
    return JSONResponse({})


def main() -> None:
    bound = socket.socket(fileno=int(sys.argv[1]))
    app = Starlette(
        routes=[
            Route("/.well-known/openid-configuration", configuration),
            Route("/jwks", jwks),
            Route("/authorize", authorize),
            Route("/token", token, methods=["POST"]),
            Route("/userinfo", userinfo),
            Route("/next", coming, methods=["POST"]),
        ]
    )
    app.state.kept = State(sys.argv[2])
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[bound])


if __name__ == "__main__":
    main()
