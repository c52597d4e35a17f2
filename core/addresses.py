"""Which addresses an upstream may have, and how its base URL is written."""

import ipaddress
import socket
import unicodedata
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

METADATA_HOSTS = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
METADATA_NUMBERS = (
    "169.254.169.254",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
)
METADATA_ADDRESSES = frozenset(ipaddress.ip_address(text) for text in METADATA_NUMBERS)

_FULL_STOPS = str.maketrans({"\u3002": ".", "\uff61": "."})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def base_url(text: str) -> str:
    """Return the upstream's base URL as it is used: no slash at the end, `/v1` appended where it does not end so.

    Raises ValueError, whose message never repeats the text (it may hold a secret), where the URL is not http(s), has
    no host, carries credentials, a query or a fragment, or names a link-local or metadata address.
    """
    parts = _split(text.strip())
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://, as in http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry a user name or password; give the key as a setting of its own")
    if parts.query or parts.fragment or text.rstrip().endswith(("?", "#")):
        raise ValueError("must not have a query or a fragment; end it with /v1")
    if not parts.hostname:
        raise ValueError("has no host; write it as http://127.0.0.1:8000/v1")
    if not _can_be_resolved(parts.hostname):
        raise ValueError(
            "has a host that no name can be: a part is empty or too long; write it as http://127.0.0.1:8000/v1"
        )
    if is_forbidden(parts.hostname):
        raise ValueError("names a link-local or metadata address, which is never an upstream; name a model server")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{path if path.endswith('/v1') else path + '/v1'}"


def _split(text: str) -> SplitResult:
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("must not hold blanks or control characters")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise ValueError("is no URL: its host or port is malformed; write it as http://127.0.0.1:8000/v1") from None
    return parts


def _can_be_resolved(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_forbidden(host: str) -> bool:
    """Tell whether `host`, a name or an address in any spelling, is a link-local or metadata address."""
    # As resolvers read it: wide digits and other full stops are digits and dots to them.
    name = unicodedata.normalize("NFKC", host).translate(_FULL_STOPS).rstrip(".").lower()
    address = parse_address(name)
    if address is None:
        return name in METADATA_HOSTS
    return any(each.is_link_local or each in METADATA_ADDRESSES for each in _carried(address))


def _carried(address: Address) -> Iterator[Address]:
    """Yield the address and those IPv4 ones that an IPv6 one leads to by translation or tunnel."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64 or 1 < int(address) < 2**32:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        yield from address.teredo or ()


def is_loopback(host: str) -> bool:
    """Tell whether a server that listens on `host` can be reached from this machine alone."""
    address = parse_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_public(address: Address) -> bool:
    """Tell whether an address, or the IPv4 one that an IPv6 one stands for, belongs to the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved)


def parse_address(host: str) -> Address | None:
    """Return the IP address that `host` spells (also as one number, in octal or hex, mapped or scoped), else `None`."""
    text = host.strip("[]").rstrip(".").split("%", 1)[0]
    try:
        address: Address = ipaddress.ip_address(text)
    except ValueError:
        return _legacy_ipv4(text)
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _legacy_ipv4(text: str) -> Address | None:
    if not text or not text[0].isdigit():
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):
        return None
