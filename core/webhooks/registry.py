"""Tenants' webhook endpoints: made, listed, deleted. Tenants see only their own; `tenant` None is an operator."""

import secrets
from collections.abc import Callable, Collection, Sequence

from core.errors import InvalidValue
from core.ports import Clock, WebhookStore
from core.webhooks.signing import told_secret
from core.webhooks.targets import checked_url
from core.webhooks.values import Delivery, Endpoint, EventType

MOST = 20
LONGEST_DESCRIPTION = 200


class Webhooks:
    """The one road to endpoints.

    `hosts` are those beyond public https that an admin lists; `key` returns an endpoint's signing key.
    """

    def __init__(
        self, *, store: WebhookStore, clock: Clock, hosts: Collection[str], key: Callable[[str], bytes]
    ) -> None:
        self._store = store
        self._clock = clock
        self._hosts = frozenset(host.rstrip(".").lower() for host in hosts)
        self._key = key

    async def create(
        self, tenant: str, *, url: str, events: Sequence[EventType] = (), description: str = ""
    ) -> tuple[Endpoint, str]:
        """Create an endpoint for events (none given: all) and return it with its secret, which is told only here.

        Raises InvalidValue naming the field.
        """
        if len(description) > LONGEST_DESCRIPTION:
            raise InvalidValue("description", f"must have at most {LONGEST_DESCRIPTION} characters")
        endpoint = Endpoint(
            id=f"we_{secrets.token_hex(16)}",
            tenant=tenant,
            url=checked_url(url, self._hosts),
            events=tuple(dict.fromkeys(events or EventType)),
            created_at=self._clock.now(),
            description=description,
        )
        await self._store.add_webhook(endpoint, most=MOST)
        return endpoint, told_secret(self._key(endpoint.id))

    async def endpoints(self, tenant: str | None) -> list[Endpoint]:
        """Return endpoints, oldest first."""
        return await self._store.webhooks(tenant=tenant)

    async def endpoint(self, endpoint_id: str, *, tenant: str | None) -> Endpoint:
        """Return one endpoint. Raises NotFound."""
        return await self._store.webhook(endpoint_id, tenant=tenant)

    async def delete(self, endpoint_id: str, *, tenant: str | None) -> None:
        """Delete an endpoint, and what is still to be sent to it. Raises NotFound."""
        await self._store.delete_webhook(endpoint_id, tenant=tenant)

    async def deliveries(self, endpoint_id: str, *, tenant: str | None, limit: int) -> list[Delivery]:
        """Return the latest deliveries to an endpoint, newest first. Raises NotFound."""
        await self._store.webhook(endpoint_id, tenant=tenant)
        return await self._store.deliveries(endpoint_id, limit=limit)
