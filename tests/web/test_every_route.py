"""What holds of every route of the application, whichever it is."""

import re
from collections.abc import Iterator

import httpx2
import pytest
from starlette.routing import Mount, Route

from tests.servers import Gate, gate
from web.app import routes
from web.headers import CSP

UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
VALUES = {"number": "1", "path": "nothing", "model": "m", "kind": "inputs"}
FOREIGN = [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]


def address(path: str) -> str:
    """A path of a route with something in the place of each parameter."""
    return re.sub(r"{(\w+)(?::\w+)?}", lambda found: VALUES.get(found[1], "x"), path)


ROUTES = [
    (method, address(route.path))
    for route in routes()
    if isinstance(route, Route)
    for method in sorted((route.methods or set()) - {"HEAD"})
]
READ = [path for method, path in ROUTES if method == "GET" and path != "/ui/stream"]
CHANGED = [(method, path) for method, path in ROUTES if method in UNSAFE]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data")) as running:
        running.change(ceiling=4, reason="an entry to look at")
        yield running


def test_the_lists_hold_what_they_should() -> None:
    assert len(READ) > 30
    assert len(CHANGED) > 30
    assert all(isinstance(route, Route | Mount) for route in routes())


@pytest.mark.parametrize("path", READ)
def test_every_page_has_its_policy_and_nothing_is_sniffed_or_framed(house: Gate, path: str) -> None:
    answer = httpx2.get(house.url + path, follow_redirects=False)
    assert answer.status_code != 500
    if path.startswith("/v1/"):
        return
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    if answer.headers.get("content-type", "").startswith("text/html"):
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("method", "path"), CHANGED)
def test_no_change_is_taken_from_a_page_of_another_site(house: Gate, method: str, path: str) -> None:
    """R104 dmellok/tesserae#251; applypack/applypack#69: no cross-site check on admin posts."""
    for foreign in FOREIGN:
        answer = httpx2.request(method, house.url + path, headers=foreign, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")


@pytest.mark.parametrize("path", READ)
def test_no_route_answers_to_a_name_that_is_not_ours(house: Gate, path: str) -> None:
    answer = httpx2.get(house.url + path, headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("path", sorted({path for _, path in ROUTES if path.startswith(("/api/", "/v1/"))}))
def test_a_method_that_an_interface_does_not_have_is_refused_in_its_shape(house: Gate, path: str) -> None:
    answer = httpx2.request("TRACE", house.url + path)
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/a%0Ab", "/api/nothing/here", "/api/pools/a/b/c"])
def test_what_is_no_route_of_an_interface_is_404_in_its_shape(house: Gate, path: str) -> None:
    answer = httpx2.get(house.url + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
