"""What the page does while an answer of the API is on its way, or never comes."""

import json

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.integration.page.conftest import LONG, Stage
from tests.support.browser import button, is_in_state, opened
from tests.support.polling import eventually

pytestmark = pytest.mark.integration


def test_one_dialog_answers_one_question(chromium: Browser, stage: Stage) -> None:
    plan = {"actions": [{"do": "start", "model": "x", "why": "asked"}]}
    stage.house.command("speaks", "start").raise_for_status()
    held: list[Route] = []
    swapped: list[str] = []

    def hold(route: Route) -> None:
        held.append(route)

    def swap(route: Route) -> None:
        swapped.append(json.loads(route.request.post_data or "")["start"])
        route.fulfill(json={})

    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        is_in_state(page, "speaks", "ready")
        page.route("**/api/swap?dry_run=true", hold)
        page.route("**/api/swap", swap)
        for model in ("fails", LONG):
            stage.house.command(model, "stop").raise_for_status()
            button(page, f"Swap in {model}").click()
        eventually(lambda: page.evaluate("1") and len(held) == 2, "both plans are asked for")
        for route in held:
            route.fulfill(json=plan)
        dialog = page.get_by_role("dialog", name=f"Swap in {LONG}?")
        dialog.get_by_role("button", name="Swap", exact=True).click()
        expect(dialog).to_be_hidden()
        eventually(lambda: page.evaluate("1") and swapped, "the swap is asked for")
    assert swapped == [LONG]


def test_a_look_without_an_answer_is_told(chromium: Browser, stage: Stage) -> None:
    stage.house.command("speaks", "start").raise_for_status()
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        is_in_state(page, "speaks", "ready")
        page.clock.install()
        with page.expect_request("**/page/live"):
            page.route("**/page/live", lambda route: None)
            page.reload()
        page.clock.run_for(11_000)
        expect(page.locator("#connection")).to_contain_text("no answer since")
        page.unroute("**/page/live")
        page.clock.run_for(2_000)
        expect(page.locator("#connection")).to_have_text("")


def test_a_button_at_work_says_so_and_the_same_error_is_told_once(chromium: Browser, stage: Stage) -> None:
    stage.house.command("speaks", "start").raise_for_status()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        page.route("**/api/servers/speaks/*", hold)
        stop = button(page, "Stop speaks")
        for _ in range(2):
            stop.click()
            expect(stop).to_have_attribute("aria-disabled", "true")
            expect(stop).to_be_focused()
            eventually(lambda: page.evaluate("1") and held, "the call is made")
            held.pop().abort()
            expect(stop).not_to_have_attribute("aria-disabled", "true")
            expect(page.get_by_role("alert").filter(has_text="Stop speaks")).to_have_count(1)
