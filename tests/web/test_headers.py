import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from web.headers import CSP, KnownHosts, SecurityHeaders

GUARD = SecurityHeaders(Starlette(), hosts=KnownHosts(["gate.internal"]))


def refused(method: str, path: str, **headers: str) -> str | None:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = GUARD.refusal(method, path, Headers(given))
    return refusal[0] if refusal else None


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:3456", "app.localhost", "127.0.0.1:1", "[::1]:3456", "10.0.0.5", "gate.internal:80"],
)
def test_names_of_this_machine_and_addresses_are_answered(host: str) -> None:
    assert refused("GET", "/", host=host) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "a b"]
)
def test_other_names_are_refused_against_rebinding(host: str) -> None:
    for path in ("/", "/v1/models", "/api/pools"):
        assert refused("GET", path, host=host) == "host_not_allowed"


def test_a_star_allows_every_name() -> None:
    guard = SecurityHeaders(Starlette(), hosts=KnownHosts(["*"]))
    assert guard.refusal("GET", "/", Headers({"host": "anything.example"})) is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/pools/default", "/ui/tuning"])
@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "same-origin", "origin": "https://evil.example"},
    ],
)
def test_changes_from_another_site_are_refused_on_every_route(path: str, foreign: dict[str, str]) -> None:
    """R104 dmellok/tesserae#251: no cross-site check on admin posts."""
    assert refused("POST", path, host="localhost:3456", **foreign) == "cross_site"


def test_reading_from_another_site_is_harmless() -> None:
    assert refused("GET", "/", host="localhost:3456", origin="https://evil.example") is None


def test_scripts_without_a_browser_need_neither_header() -> None:
    assert refused("POST", "/v1/chat/completions", host="localhost:3456") is None
    assert refused("PATCH", "/api/pools/default", host="localhost:3456") is None


def test_page_routes_and_cookies_must_say_where_they_come_from() -> None:
    assert refused("POST", "/ui/tuning", host="localhost:3456") == "origin_required"
    assert refused("POST", "/api/x", host="localhost:3456", cookie="a=1; tidegate_session=x") == "origin_required"
    assert refused("POST", "/ui/tuning", host="localhost:3456", sec_fetch_site="same-origin") is None
    assert refused("POST", "/ui/tuning", host="localhost:3456", origin="http://localhost:3456") is None
    assert refused("POST", "/ui/tuning", host="gate.internal", origin="https://gate.internal:443") is None


@pytest.fixture
def client() -> TestClient:
    routes = [
        Route("/", lambda request: HTMLResponse("<p>hi")),
        Route("/kept", lambda request: HTMLResponse("<p>hi", headers={"cache-control": "max-age=5"})),
        Route("/text", lambda request: PlainTextResponse("hi")),
        Route("/v1/models", lambda request: HTMLResponse("upstream's own")),
    ]
    return TestClient(SecurityHeaders(Starlette(routes=routes), hosts=KnownHosts()), base_url="http://localhost")


def test_every_page_has_the_policy_and_is_not_stored(client: TestClient) -> None:
    headers = client.get("/").headers
    assert headers["content-security-policy"] == CSP
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "unsafe" not in CSP
    assert client.get("/kept").headers["cache-control"] == "max-age=5"


def test_other_answers_are_not_sniffed_and_those_of_the_model_server_are_untouched(client: TestClient) -> None:
    assert client.get("/text").headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in client.get("/v1/models").headers


def test_a_refusal_is_told_in_the_apis_error_shape(client: TestClient) -> None:
    answer = client.get("/v1/models", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"


def test_a_refused_call_tells_lane_wait_and_request_id_as_every_other(client: TestClient) -> None:
    foreign = {"origin": "https://evil.example", "x-request-id": "mine-1"}
    answer = client.post("/v1/chat/completions", headers=foreign)
    told = [answer.headers.get(name) for name in ("x-request-id", "x-tidegate-lane", "x-tidegate-queue-ms")]
    assert (answer.status_code, told) == (403, ["mine-1", "interactive", "0"])
