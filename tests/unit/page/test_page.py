"""The page as HTML: nothing in it is taken for markup, nothing of it leads elsewhere, and no key opens no data."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import __version__
from orchestrator.api import Context, Guard
from orchestrator.page import Page, application
from orchestrator.page.overview import Overview
from orchestrator.page.rendering import Templates
from tests import REPOSITORY
from tests.support.asgi import Call
from tests.unit.page.made import EVERYTHING, HOSTILE

TEMPLATES = Templates()
FOLDER = Path(application.__file__).parent
REGIONS = {"summary", "models", "chat-model", "jobs", "events", "about"}


class Seen(HTMLParser):
    """Tags and ids of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def of(self, name: str) -> list[str | None]:
        return [value for key, value in self.attributes if key == name]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Page:
    async def everything(_: Any) -> Overview:
        return EVERYTHING

    monkeypatch.setattr(application, "look", everything)
    return Page(cast(Context, None), is_locked=False)


def locked_page() -> Page:
    # Whoever looked at the context would fail.
    return Page(cast(Context, None), is_locked=True)


def test_whatever_a_server_says_is_text() -> None:
    html = TEMPLATES.page(EVERYTHING, is_locked=False)
    assert HOSTILE not in html and html.count("&lt;script&gt;taken()") >= 5
    seen = Seen(html)
    assert seen.tags.count("script") == 1
    assert [name for name, _ in seen.attributes if name.startswith("on")] == []


def test_everything_is_shown() -> None:
    html = TEMPLATES.live(EVERYTHING)
    words = ["93.8 %", "no drafts", "no traffic", "3 s of about 8 s", "it may fault on gfx906", "2 times in a row"]
    words += (
        "41.9 MB of 98.3 MB, 11.5 MB/s, 5 s left",
        "look at the repository",
        "loaded and warmed up",
        "absent.gguf",
        "CUDA is expected and not used",
    )
    assert [word for word in words if word not in html.replace("&#39;", "'")] == []


def test_what_changes_has_its_place_on_the_page() -> None:
    page, live = Seen(TEMPLATES.page(EVERYTHING, is_locked=False)), Seen(TEMPLATES.live(EVERYTHING))
    assert set(page.of("id")) >= REGIONS == set(live.of("id")) & REGIONS
    ids = page.of("id")
    assert len(ids) == len(set(ids))


def test_every_button_says_what_it_is_about() -> None:
    seen = Seen(TEMPLATES.live(EVERYTHING))
    calls, labels = seen.of("data-call"), [label for label in seen.of("aria-label") if label]
    assert len(calls) >= 8
    assert len(set(labels)) == len(labels)


async def test_the_bare_page_holds_no_data() -> None:
    call = await Call(locked_page(), "GET", "/").run()
    html = call.content.decode()
    assert call.status == 200 and 'id="unlock"' in html
    assert Seen(html).of("data-call") == [] and "<option" not in html and "data-event" not in html
    assert __version__ not in html


async def test_without_keys_it_shows_the_state_at_once(open_page: Page) -> None:
    html = (await Call(open_page, "GET", "/").run()).content.decode()
    assert 'id="unlock"' not in html and "93.8 %" in html


@pytest.mark.parametrize("path", ["/", "/page/live", "/page/page.js", "/page/page.css"])
async def test_every_answer_forbids_what_is_from_elsewhere(open_page: Page, path: str) -> None:
    call = await Call(open_page, "GET", path).run()
    [policy] = call.header("content-security-policy")
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert call.header("x-content-type-options") == ["nosniff"]
    assert call.header("cache-control") == ["no-cache" if path.endswith(("js", "css")) else "no-store"]


async def test_files_are_sent_once(open_page: Page) -> None:
    [etag] = (await Call(open_page, "GET", "/page/page.css").run()).header("etag")
    again = await Call(open_page, "GET", "/page/page.css", headers={"if-none-match": etag}).run()
    assert (again.status, again.content) == (304, b"")


async def test_it_is_only_read(open_page: Page) -> None:
    call = await Call(open_page, "POST", "/", body=b"x").run()
    assert (call.status, call.header("allow")) == (405, ["GET, HEAD"])
    assert (await Call(open_page, "HEAD", "/").run()).status == 200


async def test_a_bug_is_told_without_its_details() -> None:
    call = await Call(locked_page(), "GET", "/page/live").run()
    assert call.status == 500
    assert call.header("content-type") == ["application/problem+json"]
    assert b"Traceback" not in call.content and b"NoneType" not in call.content


async def test_the_guard_lets_the_page_through_and_nothing_that_holds_data() -> None:
    guard = Guard(locked_page(), ("root-key",), ("user-key",), ("localhost",))
    files = {f"/page/{path.name}" for path in (FOLDER / "static").iterdir()}
    for path in {"/", *files}:
        assert (await Call(guard, "GET", path).run()).status == 200, path
        assert (await Call(guard, "GET", path, headers={"host": "evil.example"}).run()).status == 403, path
    for path in ("/page/live", "/page/", "/page", "/page/page.css/", "/page/templates/page.html", "/page/%2e%2e/live"):
        assert (await Call(guard, "GET", path).run()).status == 401, path
        assert (await Call(guard, "GET", path, headers={"authorization": "Bearer user-key"}).run()).status == 403, path


def test_nothing_in_it_leads_elsewhere() -> None:
    for path in [*(FOLDER / "static").iterdir(), *(FOLDER / "templates").iterdir()]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|@import|url\(|//[a-z]+\.[a-z]", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=", text), path


def test_its_files_are_in_the_package() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    patterns = re.findall(r'"(page/[^"]+)"', text)
    packed = {path for pattern in patterns for path in (REPOSITORY / "orchestrator").glob(pattern)}
    assert packed == {path for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
