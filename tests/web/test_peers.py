import pytest

from web.peers import Peers


def scope(peer: str, *headers: tuple[str, str], scheme: str = "http") -> dict[str, object]:
    return {"client": (peer, 1), "scheme": scheme, "headers": [(k.encode(), v.encode()) for k, v in headers]}


TRUSTED = Peers(["10.0.0.0/8", "::1/128"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", "203.0.113.5", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.5, 10.0.0.9", "203.0.113.5"),
        ("::1", "2001:db8::7", "2001:db8::7"),
        ("::ffff:10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "made up", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, made up", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2, 10.0.0.3", "10.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_is_believed_where_a_request_came_from(peer: str, forwarded: str, address: str) -> None:
    assert TRUSTED.address(scope(peer, ("x-forwarded-for", forwarded))) == address


def test_several_headers_are_one_list() -> None:
    asked = scope("10.0.0.1", ("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "203.0.113.5"))
    assert TRUSTED.address(asked) == "203.0.113.5"


def test_without_trusted_proxies_nobody_is_believed() -> None:
    asked = scope("127.0.0.1", ("x-forwarded-for", "203.0.113.5"), ("x-forwarded-proto", "https"))
    assert Peers().address(asked) == "127.0.0.1"
    assert not Peers().is_https(asked)
    assert not Peers().through_proxy(asked)
    assert Peers().address({"client": None, "headers": []}) == ""


def test_https_is_seen_at_the_socket_in_the_origin_and_by_a_trusted_proxy() -> None:
    assert Peers().is_https(scope("192.0.2.1", scheme="https"))
    assert Peers().is_https(scope("192.0.2.1", ("origin", "https://gate.example")))
    assert not Peers().is_https(scope("192.0.2.1", ("origin", "http://gate.example")))
    assert TRUSTED.is_https(scope("10.0.0.1", ("x-forwarded-proto", "https")))
    assert not TRUSTED.is_https(scope("10.0.0.1", ("x-forwarded-proto", "http")))
    assert not TRUSTED.is_https(scope("192.0.2.1", ("x-forwarded-proto", "https")))
