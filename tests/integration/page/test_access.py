"""For every reader: both themes, both widths, a keyboard alone, and what axe-core finds in every state."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.page.conftest import LONG, Stage
from tests.support.browser import NARROW, WIDE, button, entry, faults, is_in_state, opened
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration
# Pairs of things on the page of which neither is inside the other and whose boxes share more than a pixel.
# Notices lie above the page until they are dismissed.
OVERLAPS = """() => {
  const things = "h1, h2, h3, p, button, select, textarea, input, summary, td, th, progress";
  const seen = [...document.querySelectorAll(things)]
    .filter((e) => e.checkVisibility() && !e.closest(".unseen, .skip, .notices"))
    .map((e) => [e, e.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const found = [];
  for (const [i, [a, p]] of seen.entries()) for (const [b, q] of seen.slice(i + 1)) {
    const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (across > 1 && down > 1 && !a.contains(b) && !b.contains(a)) found.push(`${a.outerHTML} | ${b.outerHTML}`);
  }
  return found;
}"""
CUT_OFF = """() => [...document.querySelectorAll("main *, header *, form *")]
  .filter((e) => e.checkVisibility() && !e.closest(".unseen, select, svg, .log"))
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5 || (e.scrollWidth > e.clientWidth + 1
    && e.clientWidth && getComputedStyle(e).display !== "inline"))
  .map((e) => e.outerHTML.slice(0, 200))"""


def fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_everything_fits_and_can_be_read(
    chromium: Browser, house: Orchestrator, size: tuple[int, int], scheme: Any
) -> None:
    house.command("plain", "stop").raise_for_status()
    house.start_model("toy")
    job = house.http.post("/api/models/slow/pull").raise_for_status().json()["id"]
    try:
        with opened(chromium, house.base_url, size, scheme) as watched:
            page = watched.page
            expect(page.locator("[data-job]").first).to_contain_text("MB/s")
            page.fill("#chat-text", "hello")
            page.select_option("#chat-model", "toy")
            page.locator("details.options summary").click()
            page.fill("[data-field=max_tokens]", "30")
            page.press("#chat-text", "Enter")
            expect(page.locator(".statistics")).to_contain_text("tok/s")
            for summary in page.locator("[data-model] summary").all():
                summary.click()
            fits(page)
            assert faults(page) == []
            if size == WIDE:
                button(page, "Swap in plain").click()
                expect(page.get_by_role("dialog")).to_be_visible()
                assert faults(page) == []
    finally:
        house.http.delete(f"/api/jobs/{job}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_trouble_can_be_read(chromium: Browser, stage: Stage, scheme: Any) -> None:
    gate = stage.gate("never")
    stage.script("fails", exit_in_load=1, complaint="error: a reason that is long " * 8)
    stage.script("gated", load_gate=str(gate), ticks=True)
    for name in ("fails", "gated"):
        stage.house.command(name, "stop").raise_for_status()
    with opened(chromium, stage.house.base_url, NARROW, scheme) as watched:
        page = watched.page
        button(page, "Start fails").click()
        expect(page.get_by_role("alert").filter(has_text="Start fails")).to_be_visible()
        button(page, "Start gated").click()
        is_in_state(page, "gated", "loading")
        entry(page, "fails").locator("summary").click()
        page.select_option("#chat-model", LONG)
        fits(page)
        page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        fits(page)
        assert faults(page) == []
        button(page, "Stop gated").click()
        is_in_state(page, "gated", "stopped")


def test_a_keyboard_is_enough(chromium: Browser, house: Orchestrator) -> None:
    for model in ("toy", "plain"):
        house.command(model, "stop").raise_for_status()
    with opened(chromium, house.base_url) as watched:
        page = watched.page
        expect(button(page, "Start toy")).to_be_visible()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the models"
        page.keyboard.press("Enter")
        to(page, "Start toy")
        page.keyboard.press("Enter")
        is_in_state(page, "toy", "ready")
        to(page, "Swap in plain")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        to(page, "Swap")
        page.keyboard.press("Enter")
        is_in_state(page, "plain", "ready")
        to(page, "", "chat-model")
        page.keyboard.type("plain")
        to(page, "", "chat-text")
        page.keyboard.type("hello")
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_have_count(1)


def to(page: Page, label: str, id: str = "") -> None:
    """Press Tab until the focus is on a button of that label, or the element of that id; it must be seen there."""
    about = "(e => [e.getAttribute('aria-label') ?? e.textContent.trim(), e.id])(document.activeElement)"
    for _ in range(60):
        page.keyboard.press("Tab")
        found_label, found_id = page.evaluate(about)
        if found_id == id if id else found_label == label:
            assert page.evaluate("document.activeElement.matches(':focus-visible')")
            return
    pytest.fail(f"60 steps do not reach {label or id!r}")
