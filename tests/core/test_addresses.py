"""The upstream's base URL."""

import pytest

from core.addresses import base_url, is_forbidden, is_loopback


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://Models.Example/openai/v1/", "https://models.example/openai/v1"),
        ("https://models.example/openai", "https://models.example/openai/v1"),
        ("  http://[::1]:8000/v1\n", "http://[::1]:8000/v1"),
    ],
)
def test_a_base_url_ends_in_v1_or_gets_it_appended(given: str, wanted: str) -> None:
    assert base_url(given) == wanted


@pytest.mark.parametrize(
    "given",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://user:canary@host/v1",
        "http://canary@host/v1",
        "http://host/v1?key=canary",
        "http://host/v1#canary",
        "http://host/v1?",
        "http://host:canary/v1",
        "http://host:99999/v1",
        "http://[canary/v1",
        "http://ho st/v1",
        "http://host/v1\ncanary",
        "http://canary..host/v1",
        "http://" + "canary" * 12 + "/v1",
    ],
)
def test_a_malformed_base_url_is_refused_without_being_repeated(given: str) -> None:
    """R99 BerriAI/litellm#8075: a key in the URL turns up in messages."""
    with pytest.raises(ValueError, match=r"must|has no|is no|no name can be") as caught:
        base_url(given)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.169.254.",
        "2852039166",
        "0xA9FEA9FE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "::ffff:a9fe:a9fe",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "169。254。169。254",
        "１６９．254.169.254",
        "64:ff9b::169.254.169.254",
        "::169.254.169.254",
        "2002:a9fe:a9fe::1",
        "169.254.170.2",
        "100.100.100.200",
        "192.0.0.192",
        "fd20:ce::254",
        "0xA9.0xFE.0xA9.0xFE",
        "0x00000000a9fea9fe",
        "[fe80::1]",
    ],
)
def test_link_local_and_metadata_addresses_are_known_in_any_spelling(host: str) -> None:
    """R102 tashfeenahmed/freellmapi#440: odd spellings of the metadata address."""
    assert is_forbidden(host)


def test_a_metadata_address_is_never_an_upstream() -> None:
    with pytest.raises(ValueError, match="metadata"):
        base_url("http://2852039166/v1")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.0.0.5", "192.168.1.4", "gpu-7", "models.example", "::1", "0.0.0.0", "::"]
)
def test_loopback_and_private_upstreams_are_allowed(host: str) -> None:
    """0.0.0.0, as model servers print it, leads to this machine and no further than 127.0.0.1 does."""
    assert not is_forbidden(host)


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("gateway.example", False),
        ("", False),
    ],
)
def test_only_loopback_addresses_count_as_out_of_reach(host: str, wanted: bool) -> None:
    assert is_loopback(host) is wanted
