"""The one road for changes of tenants' webhook endpoints, for API and pages alike. Tenants see only their own."""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from core.errors import InvalidValue, RequestError
from core.people.acting import By
from core.people.audit import AuditEntry, check_reason
from core.people.told import instant
from core.ports import Clock, WebhookStore
from core.webhooks.posting import Poster
from core.webhooks.signing import told_secret
from core.webhooks.targets import checked_url
from core.webhooks.values import EVENTS, Delivery, DeliveryState, Endpoint, EventType, Health, trial_of

MOST = 20
LONGEST_DESCRIPTION = 200
DEFAULT_OVERLAP = timedelta(hours=24)
TEST_EVERY_S = 5


class Webhooks:
    """Makes, changes, tests and deletes endpoints; each change has its entry in the audit trail.

    `hosts` are those beyond public https that an admin lists. `tenant` `None` is an admin, who sees all. With
    `require_reason` a change without a reason is an InvalidValue. Raises InvalidValue, naming the field, and NotFound.
    """

    def __init__(
        self,
        *,
        store: WebhookStore,
        poster: Poster,
        clock: Clock,
        hosts: Collection[str],
        require_reason: bool = False,
    ) -> None:
        self._store = store
        self._poster = poster
        self._clock = clock
        self._hosts = frozenset(host.rstrip(".").lower() for host in hosts)
        self._require_reason = require_reason
        self._tested: dict[str, float] = {}

    async def create(
        self, tenant: str, *, url: str, events: Sequence[EventType] = (), description: str = "", by: By
    ) -> tuple[Endpoint, str]:
        """Create an endpoint for events (none given: all) and return it with its secret, which is told only here."""
        self._check(by)
        if len(description) > LONGEST_DESCRIPTION:
            raise InvalidValue("description", f"must have at most {LONGEST_DESCRIPTION} characters")
        now = self._clock.now()
        endpoint = Endpoint(
            id=f"we_{secrets.token_hex(16)}",
            tenant=tenant,
            url=checked_url(url, self._hosts),
            events=tuple(dict.fromkeys(events or EVENTS.values())),
            created_at=now,
            description=description,
        )
        entry = by.entry(now, "webhook.create", f"webhook:{endpoint.id}", after=_told(endpoint))
        await self._store.add_webhook(endpoint, most=MOST, audit=[entry])
        return endpoint, self._secret(endpoint)

    async def endpoints(self, tenant: str | None) -> list[Endpoint]:
        """Return endpoints, oldest first."""
        return await self._store.webhooks(tenant=tenant)

    async def endpoint(self, endpoint_id: str, *, tenant: str | None) -> Endpoint:
        """Return one endpoint."""
        return await self._store.webhook(endpoint_id, tenant=tenant)

    async def switch(self, endpoint_id: str, *, on: bool, tenant: str | None, by: By) -> Endpoint:
        """Let an endpoint rest, or be told again: of what ends from then on, and of what was still to be sent."""
        self._check(by)
        now = self._clock.now()

        def change(endpoint: Endpoint) -> Endpoint:
            return replace(endpoint, disabled_at=None if on else endpoint.disabled_at or now)

        entry = _entry(by, "webhook.enable" if on else "webhook.disable", now)
        return await self._store.change_webhook(endpoint_id, change, tenant=tenant, entry=entry)

    async def rotate(
        self, endpoint_id: str, *, tenant: str | None, by: By, overlap: timedelta = DEFAULT_OVERLAP
    ) -> tuple[Endpoint, str]:
        """Give an endpoint a new secret, told only here; for `overlap` the present one signs messages, too."""
        self._check(by)
        now = self._clock.now()

        def change(endpoint: Endpoint) -> Endpoint:
            return replace(endpoint, rotations=endpoint.rotations + 1, old_until=now + overlap if overlap else None)

        entry = _entry(by, "webhook.rotate", now)
        endpoint = await self._store.change_webhook(endpoint_id, change, tenant=tenant, entry=entry)
        return endpoint, self._secret(endpoint)

    async def delete(self, endpoint_id: str, *, tenant: str | None, by: By) -> None:
        """Delete an endpoint, and what is still to be sent to it."""
        self._check(by)
        now = self._clock.now()

        def entry(endpoint: Endpoint) -> AuditEntry:
            return by.entry(now, "webhook.delete", f"webhook:{endpoint.id}", before=_told(endpoint))

        await self._store.delete_webhook(endpoint_id, tenant=tenant, entry=entry)

    async def test(self, endpoint_id: str, *, tenant: str | None) -> Delivery:
        """Send an endpoint one event that tells of no batch, and return how that went; it is not tried again.

        Raises RequestError 429 within 5 s of the last test of this endpoint.
        """
        endpoint = await self._store.webhook(endpoint_id, tenant=tenant)
        self._check_test(endpoint_id)
        event = trial_of(endpoint, self._clock.now())
        posting = await self._poster.post(endpoint, event)
        delivery = Delivery(
            number=0,
            endpoint=endpoint_id,
            event=event,
            state=DeliveryState.DELIVERED if posting.arrived else DeliveryState.GIVEN_UP,
            attempts=1,
            last_at=self._clock.now(),
            status=posting.status,
            error=posting.error,
        )
        await self._store.add_delivery(delivery)
        return delivery

    async def deliveries(self, endpoint_id: str, *, tenant: str | None, limit: int) -> list[Delivery]:
        """Return the latest deliveries to an endpoint, newest first."""
        await self._store.webhook(endpoint_id, tenant=tenant)
        return await self._store.deliveries(endpoint_id, limit=limit)

    async def health(self, endpoints: Sequence[Endpoint]) -> Mapping[str, Health]:
        """Return how each of the endpoints fares, by id."""
        return await self._store.webhook_health([endpoint.id for endpoint in endpoints])

    def _check(self, by: By) -> None:
        check_reason(by.reason, required=self._require_reason)

    def _check_test(self, endpoint_id: str) -> None:
        now = self._clock.monotonic()
        self._tested = {name: at for name, at in self._tested.items() if now - at < TEST_EVERY_S}
        if endpoint_id in self._tested:
            message = "This endpoint was tested just now. Wait a few seconds."
            raise RequestError(429, "tested_just_now", message, type="invalid_request_error", retry_after=TEST_EVERY_S)
        self._tested[endpoint_id] = now

    def _secret(self, endpoint: Endpoint) -> str:
        return told_secret(self._poster.keys(endpoint, self._clock.now())[0])


def _entry(by: By, action: str, now: datetime) -> Callable[[Endpoint, Endpoint], AuditEntry]:
    def entry(before: Endpoint, after: Endpoint) -> AuditEntry:
        return by.entry(now, action, f"webhook:{after.id}", before=_told(before), after=_told(after))

    return entry


def _told(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "tenant": endpoint.tenant,
        "url": endpoint.url,
        "events": [event.value for event in endpoint.events],
        "description": endpoint.description,
        "disabled": endpoint.disabled_at is not None,
        "rotations": endpoint.rotations,
        "old_until": instant(endpoint.old_until),
    }
