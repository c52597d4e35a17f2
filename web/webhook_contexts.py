"""What the templates of the Webhooks pages are given; see `web.contexts`. `tone` is good, warn, bad or calm."""

from dataclasses import dataclass
from typing import ClassVar

from web.contexts import Choice, Shell


@dataclass(frozen=True, slots=True)
class WebhookLine:
    """One endpoint in the list."""

    href: str
    address: str
    description: str
    team: str
    events: str
    state: str
    tone: str
    last: str
    failures: str


@dataclass(frozen=True, slots=True)
class WebhookForm:
    """The form for a new endpoint; `tenants` is empty where there is no choice."""

    values: dict[str, str]
    events: tuple[Choice, ...]
    tenants: tuple[Choice, ...]
    errors: dict[str, str]
    reason_required: bool


@dataclass(frozen=True, slots=True)
class WebhooksPage(Shell):
    """GET /webhooks."""

    template: ClassVar[str] = "webhooks.html"

    rows: tuple[WebhookLine, ...]
    form: WebhookForm | None
    told: str
    zone: str


@dataclass(frozen=True, slots=True)
class DeliveryLine:
    """One event on its way to an endpoint; `href` leads to its batch, "" for a test."""

    what: str
    about: str
    href: str
    at: str
    state: str
    tone: str
    attempts: int
    last: str
    answer: str


@dataclass(frozen=True, slots=True)
class WebhookPage(Shell):
    """GET /webhooks/{webhook_id}: one endpoint and what it was told; `tested` is how the test just made went."""

    template: ClassVar[str] = "webhook.html"

    id: str
    host: str
    facts: tuple[tuple[str, str], ...]
    disabled: bool
    deliveries: tuple[DeliveryLine, ...]
    tested: str
    arrived: bool
    told: str
    values: dict[str, str]
    errors: dict[str, str]
    reason_required: bool
    zone: str


@dataclass(frozen=True, slots=True)
class RotateWebhookPage(Shell):
    """The question before an endpoint gets a new secret."""

    template: ClassVar[str] = "webhook_rotate.html"

    id: str
    address: str
    overlaps: tuple[Choice, ...]
    values: dict[str, str]
    errors: dict[str, str]
    reason_required: bool


@dataclass(frozen=True, slots=True)
class DeleteWebhookPage(Shell):
    """The question before an endpoint is deleted; `host` must be typed."""

    template: ClassVar[str] = "webhook_delete.html"

    id: str
    address: str
    host: str
    values: dict[str, str]
    errors: dict[str, str]
    reason_required: bool
