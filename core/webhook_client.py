"""The HTTP client of tenants' webhook endpoints: posts once, and believes nothing.

Each connection is made to an address that was checked; redirects are not followed and answers' bodies are not read.
"""

import socket
from collections.abc import Collection

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from core.addresses import parse_address
from core.errors import InvalidValue
from core.webhooks.targets import checked_url, may_reach
from core.webhooks.values import Posting

PATIENCE_S = 15.0
NOT_ALLOWED = "the address is not allowed"


class AddressRefused(OSError):
    """A name resolved to an address that webhooks may not go to."""


class CheckedResolver(AbstractResolver):
    """Resolves names, and refuses one of whose addresses any is not allowed."""

    def __init__(self, *, hosts: Collection[str], resolver: AbstractResolver) -> None:
        self._hosts = hosts
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of `host`. Raises AddressRefused, OSError."""
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            address = parse_address(each["host"])
            if address is None or not may_reach(host, address, self._hosts):
                raise AddressRefused(NOT_ALLOWED)
        return found

    async def close(self) -> None:
        """Release the resolver."""
        await self._resolver.close()


class HttpWebhookClient:
    """See `core.ports.WebhookClient`. `hosts` are those beyond public https that an admin lists."""

    def __init__(
        self,
        *,
        hosts: Collection[str],
        patience_s: float = PATIENCE_S,
        resolver: type[AbstractResolver] = aiohttp.ThreadedResolver,
    ) -> None:
        self._hosts = frozenset(host.rstrip(".").lower() for host in hosts)
        self._patience_s = patience_s
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Posting:
        """Post once and tell how it went; never raises for what the other side does."""
        try:
            # What was allowed when the endpoint was made may be so no more; a number is no matter for the resolver.
            checked_url(url, self._hosts)
            async with (self._session or self._open()).post(
                url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return Posting(answer.status)
        except InvalidValue:
            return Posting(error=NOT_ALLOWED)
        except TimeoutError:
            return Posting(error=f"no answer within {self._patience_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Posting(error=_told(error))

    async def close(self) -> None:
        """Close all connections. Legal twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        resolver = CheckedResolver(hosts=self._hosts, resolver=self._resolver())
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._patience_s),
            trust_env=False,
        )
        return self._session


def _told(error: BaseException) -> str:
    """Return what went wrong, without anything that the other side wrote."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 8:
        causes.append(cause)
    if any(isinstance(each, AddressRefused) for each in causes):
        return NOT_ALLOWED
    if isinstance(error, aiohttp.ClientSSLError):
        return "its TLS certificate is not valid"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    return "the connection broke off"
