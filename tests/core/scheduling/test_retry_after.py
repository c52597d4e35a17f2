from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from core.scheduling.retry_after import retry_after_seconds

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("0", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("999999", 3600.0),
        (format_datetime(NOW + timedelta(seconds=20), usegmt=True), 20.0),
        (format_datetime(NOW - timedelta(seconds=20), usegmt=True), None),
    ],
)
def test_both_forms_are_read_and_nonsense_says_nothing(value: str, seconds: float | None) -> None:
    assert retry_after_seconds(value, NOW) == seconds
