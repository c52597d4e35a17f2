"""Signatures as Standard Webhooks (and every OpenAI SDK's `webhooks.unwrap`) wants them. Pure.

An endpoint's secret is derived from the installation's, the endpoint's name and how often it was rotated: nothing that
could leak is stored.
"""

import base64
import hmac
from collections.abc import Sequence
from datetime import datetime

from core.webhooks.values import Endpoint

PREFIX = "whsec_"
PURPOSE = "webhooks"


def endpoint_key(key: bytes, endpoint: Endpoint) -> bytes:
    """Return the 32 bytes with which an endpoint's events are signed; `key` is the installation's key for webhooks."""
    return _key(key, endpoint.id, endpoint.rotations)


def endpoint_keys(key: bytes, endpoint: Endpoint, now: datetime) -> list[bytes]:
    """Return the keys that sign now: the present one, and that from before the last rotation while they overlap."""
    old = [_key(key, endpoint.id, endpoint.rotations - 1)] if endpoint.overlaps(now) else []
    return [endpoint_key(key, endpoint), *old]


def _key(key: bytes, endpoint: str, rotations: int) -> bytes:
    name = f"{endpoint} {rotations}" if rotations else endpoint
    return hmac.digest(key, name.encode(), "sha256")


def told_secret(key: bytes) -> str:
    """Return a signing key as its owner gets it, once."""
    return PREFIX + base64.b64encode(key).decode()


def signature(key: bytes, *, event: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` of a message: HMAC-SHA256 over id, timestamp and body, joined by dots."""
    message = b".".join((event.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, message, "sha256")).decode()


def headers(keys: Sequence[bytes], *, event: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers of a message sent at `at`, with a signature by each key: receivers take any that fits."""
    timestamp = int(at.timestamp())
    signatures = [signature(key, event=event, timestamp=timestamp, body=body) for key in keys]
    return {
        "content-type": "application/json",
        "user-agent": "tidegate",
        "webhook-id": event,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
