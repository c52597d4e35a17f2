"""Where a request really came from, and how: the word of a proxy counts where that proxy is trusted."""

import functools
import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import Scope

from core.addresses import Address, parse_address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peers:
    """Tells the address, scheme and proxy of requests; `trusted` are the address ranges of trusted proxies."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted: Sequence[Network] = [ipaddress.ip_network(text) for text in trusted]
        self._is_trusted = functools.lru_cache(maxsize=1024)(self._inside)

    def address(self, scope: Scope) -> str:
        """Return the client's address, "" where nothing tells.

        Of those that a trusted proxy names it is the last one that is no trusted proxy itself: whatever stands before
        it the client may have made up.
        """
        peer = peer_of(scope)
        if not self._trusted or not self._is_trusted(peer):
            return peer
        named = ",".join(value.decode("latin-1") for value in headers_named(scope, b"x-forwarded-for"))
        for text in reversed([part.strip() for part in named.split(",") if part.strip()]):
            if parse_address(text) is None:
                return peer
            if not self._is_trusted(text):
                return text
        return peer

    def through_proxy(self, scope: Scope) -> bool:
        """Tell whether the request was handed over by a trusted proxy."""
        return bool(self._trusted) and self._is_trusted(peer_of(scope))

    def is_https(self, scope: Scope) -> bool:
        """Tell whether the browser speaks https: to here, to a trusted proxy, or to one that its Origin betrays."""
        if scope["scheme"] == "https":
            return True
        if any(value.startswith(b"https://") for value in headers_named(scope, b"origin")):
            return True
        return self.through_proxy(scope) and headers_named(scope, b"x-forwarded-proto")[-1:] == [b"https"]

    def _inside(self, text: str) -> bool:
        address: Address | None = parse_address(text)
        return address is not None and any(address in network for network in self._trusted)


def peer_of(scope: Scope) -> str:
    """Return the address at the other end of the connection."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def headers_named(scope: Scope, name: bytes) -> list[bytes]:
    """Return the values of a header, in order."""
    return [value for key, value in scope["headers"] if key == name]
