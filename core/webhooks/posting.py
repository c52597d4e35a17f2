"""Posts one event to one endpoint, signed."""

from collections.abc import Callable
from datetime import datetime

from core.ports import Clock, WebhookClient
from core.webhooks.signing import endpoint_keys, headers
from core.webhooks.values import Endpoint, Event, Posting


class Poster:
    """Signs and posts. `key` returns the installation's key for webhooks."""

    def __init__(self, *, client: WebhookClient, clock: Clock, key: Callable[[], bytes]) -> None:
        self._client = client
        self._clock = clock
        self._key = key

    async def post(self, endpoint: Endpoint, event: Event) -> Posting:
        """Post once and tell how it went; never raises for what the other side does."""
        now, body = self._clock.now(), event.body()
        signed = headers(self.keys(endpoint, now), event=event.id, at=now, body=body)
        return await self._client.post(endpoint.url, signed, body)

    def keys(self, endpoint: Endpoint, now: datetime) -> list[bytes]:
        """Return the keys that sign what an endpoint is sent, the present one first."""
        return endpoint_keys(self._key(), endpoint, now)

    async def close(self) -> None:
        """Release all connections."""
        await self._client.close()
