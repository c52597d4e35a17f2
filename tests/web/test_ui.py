from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from core.clock import SystemClock
from tests.web.pages import Site, site
from web import templating, ui
from web.ui import UNDO_FOR, Done, DoneBox

pytestmark = pytest.mark.anyio

NOW = SystemClock().now()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


def test_what_was_done_is_kept_for_ten_minutes() -> None:
    box = DoneBox()
    token = box.put(Done(NOW, "held.", "/", None))
    assert box.get(token, NOW + UNDO_FOR) is not None
    assert box.get(token, NOW + UNDO_FOR + timedelta(seconds=1)) is None
    assert box.get("guess", NOW) is None


def test_what_was_done_is_taken_back_once() -> None:
    box = DoneBox()
    token = box.put(Done(NOW, "held.", "/", None))
    assert box.take(token, NOW) is not None
    assert box.take(token, NOW) is None


def test_the_box_is_bounded() -> None:
    box = DoneBox()
    tokens = [box.put(Done(NOW, "held.", "/", None)) for _ in range(500)]
    assert [token for token in tokens if box.get(token, NOW)] == tokens[-64:]


async def test_without_the_browser_files_the_pages_are_plain_and_whole(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui, "has_bundle", lambda: False)
    page = await home.get("/")
    assert "htmx-bundle" not in page
    assert 'action="/ui/tuning"' in page
    assert "theme.js" in page


def test_an_unknown_name_in_a_template_is_an_error_and_everything_is_escaped() -> None:
    env = templating.environment()
    assert env.from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"
    with pytest.raises(Exception, match="undefined"):
        env.from_string("{{ nothing }}").render()
