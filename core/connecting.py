"""Connections to model servers. None is ever made to a link-local or metadata address, however it was come by.

The address is looked at when the socket is made, after every spelling was read and every name resolved: a name that
resolves differently the second time, or to an address that no setting may name, leads nowhere.
"""

import socket
from typing import Any

import aiohttp

from core.addresses import is_forbidden

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class AddressRefused(OSError):
    """The model server's name leads to a link-local or metadata address."""


def guarded_socket(info: AddressInfo) -> socket.socket:
    """Return a socket for an address as `getaddrinfo` tells it. Raises AddressRefused."""
    family, kind, protocol, _, address = info
    if is_forbidden(str(address[0])):
        raise AddressRefused("the address is link-local or a metadata service, which is never an upstream")
    return socket.socket(family=family, type=kind, proto=protocol)


def connector(*, keep_alive: float, resolver: aiohttp.abc.AbstractResolver | None = None) -> aiohttp.TCPConnector:
    """Return a pool of guarded connections without a limit; idle ones are kept for `keep_alive` seconds."""
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=keep_alive, resolver=resolver, socket_factory=guarded_socket)
