"""Our OpenAPI document is true: of the routes, and of a running gateway."""

import os
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from tests.servers import Gate, gate
from web import openapi_parts as parts
from web.app import routes
from web.openapi import document

KEY = "key-of-the-tester-12345"
EXAMPLES = int(os.environ.get("TIDEGATE_TEST_EXAMPLES", "8"))
"""Requests generated for each operation; a run with some hundreds looks deeper."""
NO_PAGE = ("/v1/", "/api/", "/healthz", "/readyz", "/metrics")
PEOPLE = ("/api/keys", "/api/accounts", "/api/sessions", "/api/tenants")
DOCUMENT = document(routes())
OPERATIONS = {f"{method.upper()} {path}" for path, found in DOCUMENT["paths"].items() for method in found}


def test_every_route_that_is_no_page_is_told_and_no_other() -> None:
    wanted = set()
    for route in routes():
        refusing = getattr(getattr(route, "endpoint", None), "only_refuses", False)
        if isinstance(route, Route) and route.path.startswith(NO_PAGE) and not refusing:
            path = re.sub(r":\w+}", "}", route.path)
            wanted |= {f"{method} {path}" for method in (route.methods or set()) - {"HEAD"}}
    assert wanted | {"GET /openapi.json"} == OPERATIONS


def test_nothing_is_described_that_does_not_exist() -> None:
    told = {*parts.QUERIES, *parts.BODIES, *parts.ANSWERS, *parts.SUMMARIES, *parts.WITHOUT_BODY, *parts.WITH_VERSION}
    assert told - OPERATIONS == set()


def test_every_operation_has_a_summary_and_a_name_of_its_own() -> None:
    found = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert all(re.fullmatch(r"[A-Z].*[.:]", operation["summary"]) for operation in found)
    names = [operation["operationId"] for operation in found]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere() -> None:
    for name in re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT)):
        assert name in parts.SCHEMAS


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    keys = [{"name": "tester", "key": KEY, "role": "admin"}]
    with gate(tmp_path_factory.mktemp("data"), slots=8, keys=keys, interactive_max_wait=2.0) as running:
        yield running


@pytest.fixture(scope="module")
def schema(house: Gate) -> Any:
    import schemathesis

    return schemathesis.openapi.from_dict(httpx2.get(f"{house.url}/openapi.json").json())


def test_the_document_is_served_and_is_a_sound_one(schema: Any) -> None:
    schema.validate()


def harmless(name: str) -> bool:
    """Tell whether an operation may be called with anything: changing people's keys would lock the tester out."""
    method, path = name.split()
    return method == "GET" or not path.startswith(PEOPLE)


@pytest.mark.parametrize("name", sorted(filter(harmless, OPERATIONS)))
def test_answers_are_what_the_document_says_whatever_is_asked(house: Gate, schema: Any, name: str) -> None:
    """Each operation of a live gateway is called with generated requests: no fault of ours, no untold answer."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    method, path = name.split()
    told = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        *([] if path.startswith(("/v1/", "/api/chat", "/readyz")) else [not_a_server_error]),
    ]
    operation = schema[path][method]

    @given(st.data())
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    def call(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        case.call_and_validate(
            base_url=house.url, headers={"authorization": f"Bearer {KEY}", "if-match": "*"}, checks=told, timeout=20
        )

    call()


def test_the_gateway_is_sound_after_all_that(house: Gate) -> None:
    assert httpx2.get(f"{house.url}/healthz").status_code == 200
    headers = {"authorization": f"Bearer {KEY}", "if-match": "*"}
    httpx2.patch(f"{house.url}/api/pools/default", headers=headers, json={"pause": False, "auto": True})
    assert house.chat(headers=headers, max_tokens=2).status_code == 200
