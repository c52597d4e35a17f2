"""The tables. Rows are the storage's matter: all others speak of values (core.quotas, core.control, core.batch)."""

from core.models.batches import BatchItemRow, BatchRow, FileRow
from core.models.columns import Instant
from core.models.forecasts import EtaRow, PriorRow, ThroughputRow
from core.models.people import PEOPLE_ID, AccountRow, ApiKeyRow, PeopleRow, SessionRow, TenantRow
from core.models.records import HEAD_ID, AuditHeadRow, AuditRow, CallRow
from core.models.settings import SCHEDULE_ID, DecisionRow, LimitRow, PoolRow, ScheduleRow
from core.models.webhooks import WebhookDeliveryRow, WebhookRow

__all__ = [
    "HEAD_ID",
    "PEOPLE_ID",
    "SCHEDULE_ID",
    "AccountRow",
    "ApiKeyRow",
    "AuditHeadRow",
    "AuditRow",
    "BatchItemRow",
    "BatchRow",
    "CallRow",
    "DecisionRow",
    "EtaRow",
    "FileRow",
    "Instant",
    "LimitRow",
    "PeopleRow",
    "PoolRow",
    "PriorRow",
    "ScheduleRow",
    "SessionRow",
    "TenantRow",
    "ThroughputRow",
    "WebhookDeliveryRow",
    "WebhookRow",
]
