"""Where webhooks may go. Addresses come from tenants, so the rules are strict: public https, unless an admin lists it.

Link-local and metadata addresses are refused always, however they are spelled. A name is checked again with each
address that it resolves to, when the connection is made: what it resolved to earlier says nothing.
"""

from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from core.addresses import Address, is_forbidden, is_public, parse_address
from core.errors import InvalidValue

LONGEST = 2048


def checked_url(url: str, hosts: Collection[str]) -> str:
    """Return a webhook's URL if it may be one. `hosts` are those that an admin lists. Raises InvalidValue `url`."""
    parts = _split(url)
    host = (parts.hostname or "").rstrip(".")
    if len(url) > LONGEST or not host:
        raise InvalidValue("url", "must be a URL such as https://example.com/hook, of at most 2,048 characters")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidValue("url", "must carry neither user, password nor fragment")
    listed = host in hosts
    if parts.scheme != "https" and not (listed and parts.scheme == "http"):
        raise InvalidValue("url", "must begin with https://")
    if is_forbidden(host) or not may_name(host, hosts):
        raise InvalidValue("url", "names an address that webhooks may not go to; an admin can list it in webhook_hosts")
    return url


def may_name(host: str, hosts: Collection[str]) -> bool:
    """Tell whether a URL may name `host`: false for what is plainly no public address or name, unless listed."""
    name = host.rstrip(".").lower()
    address = parse_address(name)
    if address is not None:
        return may_reach(name, address, hosts)
    private = name == "localhost" or name.endswith((".localhost", ".local", ".internal")) or "." not in name
    return not is_forbidden(name) and (name in hosts or not private)


def may_reach(host: str, address: Address, hosts: Collection[str]) -> bool:
    """Tell whether a connection to `address`, for a URL that names `host`, may be made."""
    if is_forbidden(str(address)):
        return False
    return host.rstrip(".").lower() in hosts or is_public(address)


def _split(url: str) -> SplitResult:
    if any(character.isspace() or not character.isprintable() for character in url):
        raise InvalidValue("url", "must not hold blanks or control characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidValue("url", "is no URL: its host or port is malformed") from None
    return parts
