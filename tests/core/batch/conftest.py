from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.batch_house import House, house


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as built:
        yield built
