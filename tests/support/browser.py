"""A headless Chromium over the page; what the page must never do is checked when it is closed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect, sync_playwright

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
WIDE, NARROW = (1440, 900), (375, 812)
DEADLINE_MS = 20_000
_TELL_VIOLATIONS = "addEventListener('securitypolicyviolation', e => console.error('CSP', e.blockedURI, e.sourceFile))"


@dataclass
class Watched:
    """A page, and everything it asked for and complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def strangers(self, base_url: str) -> list[str]:
        """Addresses of other hosts."""
        return [url for url in self.requests if urlsplit(url).netloc != urlsplit(base_url).netloc]


def chromium_path() -> str | None:
    """Debian's Chromium, where it is installed."""
    return shutil.which("chromium")


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser until the end of the block; nothing may wait in it for longer than the deadline."""
    expect.set_options(timeout=DEADLINE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, base_url: str, size: tuple[int, int] = WIDE, scheme: Any = "light", **options: Any
) -> Iterator[Watched]:
    """The page in a window of its own; afterwards: no other host, nothing against the policy, no error."""
    viewport = ViewportSize(width=size[0], height=size[1])
    with browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce", **options) as context:
        watched = Watched(context.new_page())
        page = watched.page
        page.add_init_script(_TELL_VIOLATIONS)
        page.on("request", lambda request: watched.requests.append(request.url))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("console", lambda said: watched.complaints.append(said.text) if _is_violation(said.text) else None)
        page.set_default_timeout(DEADLINE_MS)
        page.goto(base_url)
        yield watched
        wrong = watched.strangers(base_url) + watched.complaints
        assert not wrong, wrong
        assert page.title() == "Slipstream"


def entry(page: Page, model: str) -> Locator:
    """The row of a model."""
    return page.locator(f'[data-model="{model}"]')


def button(page: Page, label: str) -> Locator:
    return page.get_by_role("button", name=label, exact=True)


def figure(page: Page, model: str, slot: str, name: str) -> str:
    """What stands in a cell of a slot; empty where there is no such cell."""
    cells = entry(page, model).locator(f'[data-slot="{slot}"] [data-key="{name}"]')
    return "".join(cells.all_inner_texts())


def is_in_state(page: Page, model: str, state: str) -> None:
    expect(entry(page, model)).to_have_attribute("data-state", state)


def _is_violation(text: str) -> bool:
    return "CSP" in text or "Content Security Policy" in text


def faults(page: Page) -> list[str]:
    """What axe-core finds that is serious or critical."""
    found = Axe().run(page).response["violations"]
    grave = [f for f in found if f["impact"] in ("serious", "critical")]
    return [f"{f['id']}: {[node['html'] for node in f['nodes']]}" for f in grave]
