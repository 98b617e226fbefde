"""The page where keys are set: it holds nothing, asks for one, tells a wrong one, keeps the right one in the tab."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests import FAKE_SERVER
from tests.integration.page.conftest import QUICK
from tests.support.browser import button, faults, is_in_state, opened
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration
ADMIN, USER = "admin-key-of-the-page", "user-key-of-the-page"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    home = tmp_path_factory.mktemp("locked")
    for name, key in (("admin", ADMIN), ("user", USER)):
        (home / name).write_text(key)
    keys = {"ADMIN_KEYS_FILE": str(home / "admin"), "API_KEYS_FILE": str(home / "user")}
    house = Orchestrator(home, FAKE_SERVER, QUICK | keys)
    house.models_dir.mkdir()
    write_script(house.models_dir / "private.gguf", {})
    house.write_model("private", source={"path": "private.gguf"})
    with running_orchestrator(house):
        yield house
        house.require_alive()


def give(page: Page, key: str) -> None:
    page.fill("#key", key)
    page.press("#key", "Enter")


def test_the_bare_page_says_nothing(locked: Orchestrator) -> None:
    bare = locked.http.get("/")
    assert bare.status_code == 200 and "private" not in bare.text
    assert locked.http.get("/page/live").status_code == 401
    assert httpx.get(f"{locked.base_url}/page/live", headers={"authorization": f"Bearer {USER}"}).status_code == 403


def test_a_wrong_key_is_told_and_the_right_one_opens(chromium: Browser, locked: Orchestrator) -> None:
    with opened(chromium, locked.base_url) as watched:
        page = watched.page
        expect(page.locator("main")).to_be_hidden()
        assert faults(page) == []
        give(page, "wrong")
        error = page.locator("#key-error")
        expect(error).to_contain_text("this key is not known here")
        # A header takes bytes alone.
        give(page, "ключ")
        expect(page.locator("#key")).to_have_value("")
        expect(error).to_contain_text("this key is not known here")
        expect(page.locator("#key")).to_be_focused()
        give(page, USER)
        expect(error).to_contain_text("needs an admin key")
        assert faults(page) == []
        give(page, ADMIN)
        is_in_state(page, "private", "stopped")
        expect(page.locator("#unlock")).to_be_hidden()
        button(page, "Start private").click()
        is_in_state(page, "private", "ready")
        assert [url for url in watched.requests if "key-of" in url] == []


def test_the_tab_keeps_the_key_until_it_is_forgotten(chromium: Browser, locked: Orchestrator) -> None:
    with opened(chromium, locked.base_url) as watched:
        page = watched.page
        give(page, ADMIN)
        expect(page.locator("main")).to_be_visible()
        page.reload()
        expect(page.locator("[data-model=private]")).to_be_visible()
        kept = "[Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
        assert page.evaluate(kept) == [[ADMIN], [], ""]
        button(page, "Forget key").click()
        expect(page.locator("#unlock")).to_be_visible()
        expect(page.locator("[data-model]")).to_have_count(0)
        assert page.evaluate("sessionStorage.length") == 0


def test_a_key_that_stops_counting_closes_the_page(chromium: Browser, locked: Orchestrator) -> None:
    with opened(chromium, locked.base_url) as watched:
        page = watched.page
        give(page, ADMIN)
        expect(page.locator("main")).to_be_visible()
        page.evaluate("sessionStorage.setItem('slipstream-key', 'changed')")
        expect(page.locator("#key-error")).to_contain_text("not known")
        expect(page.locator("main")).to_be_hidden()


def test_without_javascript_it_says_what_to_do(chromium: Browser, locked: Orchestrator) -> None:
    with opened(chromium, locked.base_url, java_script_enabled=False) as watched:
        expect(watched.page.get_by_text("Without it: slipstream status")).to_be_visible()
        expect(watched.page.locator("#unlock")).to_be_hidden()
