import asyncio

import pytest

from core.coordination.local import LocalNotifier

pytestmark = pytest.mark.anyio


async def test_a_notification_wakes_everyone_who_waits_and_nobody_who_comes_later() -> None:
    notifier = LocalNotifier()
    waiting = [asyncio.ensure_future(notifier.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    notifier.notify()
    notifier.notify()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    late = asyncio.ensure_future(notifier.changed())
    await asyncio.sleep(0)
    assert not late.done()
    notifier.notify()
    async with asyncio.timeout(10):
        await late


async def test_a_waiter_that_gave_up_harms_nobody() -> None:
    notifier = LocalNotifier()
    one, other = (asyncio.ensure_future(notifier.changed()) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    notifier.notify()
    async with asyncio.timeout(10):
        await other
    assert one.cancelled() or not one.done()
    await asyncio.gather(one, return_exceptions=True)
