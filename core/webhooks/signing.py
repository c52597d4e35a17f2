"""Signatures as Standard Webhooks (and every OpenAI SDK's `webhooks.unwrap`) wants them. Pure.

An endpoint's secret is derived from the installation's and the endpoint's name: nothing that could leak is stored.
"""

import base64
import hmac
from datetime import datetime

PREFIX = "whsec_"
PURPOSE = "webhooks"


def endpoint_key(key: bytes, endpoint: str) -> bytes:
    """Return the 32 bytes with which an endpoint's events are signed; `key` is the installation's key for webhooks."""
    return hmac.digest(key, endpoint.encode(), "sha256")


def told_secret(key: bytes) -> str:
    """Return a signing key as its owner gets it, once."""
    return PREFIX + base64.b64encode(key).decode()


def signature(key: bytes, *, event: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` of a message: HMAC-SHA256 over id, timestamp and body, joined by dots."""
    message = b".".join((event.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, message, "sha256")).decode()


def headers(key: bytes, *, event: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers of a message sent at `at`."""
    timestamp = int(at.timestamp())
    return {
        "content-type": "application/json",
        "user-agent": "tidegate",
        "webhook-id": event,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, event=event, timestamp=timestamp, body=body),
    }
