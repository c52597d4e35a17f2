"""What all benchmarks share: the servers, started once, and the table at the end."""

from collections.abc import Iterator

import pytest
from rich.console import Console

from tests.benchmarks import rig, table


@pytest.fixture(scope="session")
def stub() -> Iterator[rig.Target]:
    with rig.stub() as target:
        yield target


@pytest.fixture(scope="session")
def anchor(stub: rig.Target) -> Iterator[rig.Target]:
    try:
        with rig.nginx(stub.port) as target:
            yield target
    except rig.Missing:
        table.NOTES.append("nginx is missing: the anchor is the bundled bare-ASGI pass-through, which costs more")
        with rig.passthrough(stub.port) as target:
            yield target


@pytest.fixture(scope="session")
def tidegate(stub: rig.Target) -> Iterator[rig.Target]:
    with rig.tidegate(stub.port) as target:
        yield target


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    if table.ROWS:
        console = Console(width=140)
        console.print()
        table.show(console)
