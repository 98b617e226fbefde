"""What changes under the reader's hands, and what strangers say: over a server that does as it is told."""

import json

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.page.conftest import HOSTILE, Stage
from tests.support.browser import button, entry, is_in_state, opened
from tests.support.orchestrator import Orchestrator
from tests.support.polling import eventually

pytestmark = pytest.mark.integration
MARKUP = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"


def chunk(**delta: str) -> str:
    return f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n"


def test_a_load_tells_how_far_it_is_and_how_long_it_takes(chromium: Browser, stage: Stage) -> None:
    house, gate = stage.house, stage.gate("load")
    stage.script("gated", load_gate=str(gate), ticks=True)
    gate.touch()
    house.command("gated", "start").raise_for_status()
    house.command("gated", "stop").raise_for_status()
    gate.unlink()
    with opened(chromium, house.base_url) as watched:
        page = watched.page
        button(page, "Start gated").click()
        is_in_state(page, "gated", "loading")
        bar = entry(page, "gated").get_by_role("progressbar", name="Start of gated")
        expect(bar).to_have_attribute("value", "0.99")
        expect(entry(page, "gated")).to_contain_text("expected: asked to start")
        gate.touch()
        is_in_state(page, "gated", "ready")
        expect(bar).to_have_count(0)


def test_what_the_reader_has_in_hand_stays(chromium: Browser, stage: Stage) -> None:
    stage.house.command("gated", "stop").raise_for_status()
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        details = entry(page, "speaks").locator("details")
        details.locator("summary").click()
        page.fill("#chat-text", "half a quest")
        page.select_option("#chat-model", "speaks")
        page.locator("#chat-text").evaluate("e => e.setSelectionRange(2, 6)")
        before = page.locator("[data-event]").count()
        stage.gate("load").touch()
        stage.house.command("gated", "start").raise_for_status()
        is_in_state(page, "gated", "ready")
        assert page.locator("[data-event]").count() > before or before == 15
        expect(details).to_have_attribute("open", "")
        held = "[document.activeElement.id, getSelection().toString(), document.querySelector('#chat-model').value]"
        assert page.evaluate(held) == ["chat-text", "lf a", "speaks"]
        # A button that is gone for another leaves the keyboard in its row.
        button(page, "Stop gated").focus()
        stage.house.command("gated", "stop").raise_for_status()
        is_in_state(page, "gated", "stopped")
        assert page.evaluate("document.activeElement.closest('[data-model]').dataset.model") == "gated"


def test_a_failure_is_told_and_its_quarantine_lifted(chromium: Browser, stage: Stage) -> None:
    stage.script("fails", exit_in_load=1, complaint=f"error: {MARKUP}")
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        button(page, "Start fails").click()
        is_in_state(page, "fails", "failed")
        expect(page.get_by_role("alert").filter(has_text="Start fails")).to_be_visible()
        row = entry(page, "fails")
        expect(row).to_contain_text("In quarantine for")
        row.locator("summary").click()
        expect(row.locator("pre")).to_contain_text(MARKUP)
        expect(row.locator("img, b")).to_have_count(0)
        stage.script("fails")
        button(page, "Clear quarantine fails").click()
        expect(row).not_to_contain_text("In quarantine")
        button(page, "Start fails").click()
        is_in_state(page, "fails", "ready")


def test_an_answer_is_text_and_its_reasoning_stands_apart(chromium: Browser, stage: Stage) -> None:
    gate = stage.gate("chunks")
    chunks = [chunk(reasoning_content=f"Hm {MARKUP}"), chunk(content=MARKUP), "data: [DONE]\n\n"]
    stage.script("speaks", chunks=chunks, chunk_gate=str(gate))
    stage.house.command("speaks", "restart").raise_for_status()
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        send(page, "speaks", MARKUP)
        expect(page.locator(".reasoning .body")).to_have_text(f"Hm {MARKUP}")
        expect(button(page, "Stop")).to_be_visible()
        gate.touch()
        expect(page.locator(".answer > .body")).to_have_text(MARKUP)
        expect(page.locator(".asked .body")).to_have_text(MARKUP)
        expect(page.locator("#chat-log :is(img, b)")).to_have_count(0)
        expect(page.locator("#said")).to_contain_text("speaks has answered")
        expect(page.locator("#chat-text")).to_be_focused()


def test_an_answer_tells_that_its_model_is_loading(chromium: Browser, stage: Stage) -> None:
    gate = stage.gate("first answer")
    stage.house.command("speaks", "stop").raise_for_status()
    stage.script("speaks", load_gate=str(gate), ticks=True, chunks=[chunk(content="Here"), "data: [DONE]\n\n"])
    with opened(chromium, stage.house.base_url) as watched:
        send(watched.page, "speaks", "hello")
        expect(watched.page.locator(".statistics")).to_have_text("… speaks is loading")
        gate.touch()
        expect(watched.page.locator(".answer .body")).to_have_text("Here")


def test_an_answer_that_breaks_off_is_told(chromium: Browser, stage: Stage) -> None:
    stage.script("speaks", chunks=[chunk(content="Half an ans")])
    stage.house.command("speaks", "restart").raise_for_status()
    with opened(chromium, stage.house.base_url) as watched:
        send(watched.page, "speaks", "hello")
        expect(watched.page.get_by_role("alert").filter(has_text="Chat with speaks")).to_be_visible()
        expect(watched.page.locator(".statistics")).to_have_text("broken off")
        expect(watched.page.locator(".answer .body")).to_have_text("Half an ans")


def test_a_conversation_that_is_cleared_is_not_gone_on_with(chromium: Browser, stage: Stage) -> None:
    gate = stage.gate("cleared")
    stage.script(
        "speaks", chunks=[chunk(content="Old"), chunk(content=" news"), "data: [DONE]\n\n"], chunk_gate=str(gate)
    )
    stage.house.command("speaks", "restart").raise_for_status()
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        send(page, "speaks", "first")
        expect(page.locator(".answer .body")).to_have_text("Old")
        button(page, "Clear chat").click()
        expect(button(page, "Send")).to_be_visible()
        gate.touch()
        with page.expect_request("**/v1/chat/completions") as asked:
            send(page, "speaks", "second")
        assert [m["content"] for m in json.loads(asked.value.post_data or "{}")["messages"]] == ["second"]
        expect(page.locator(".answer .body")).to_have_text("Old news")


def test_an_option_that_is_wrong_is_shown_and_not_sent(chromium: Browser, stage: Stage) -> None:
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        options = page.locator("details.options")
        options.evaluate("e => e.open = true")
        page.fill("[data-field=max_tokens]", "1.5")
        options.evaluate("e => e.open = false")
        send(page, "speaks", "hello")
        expect(page.locator("[data-field=max_tokens]")).to_be_focused()
        expect(page.locator("#chat-text")).to_have_value("hello")
        expect(page.locator(".answer")).to_have_count(0)


def send(page: Page, model: str, text: str) -> None:
    page.select_option("#chat-model", model)
    page.fill("#chat-text", text)
    page.press("#chat-text", "Enter")


def test_the_name_of_a_wrong_model_file_is_text(chromium: Browser, house: Orchestrator) -> None:
    with opened(chromium, house.base_url) as watched:
        problems = watched.page.locator("#models > .error")
        said = problems.all_inner_texts()
        assert [HOSTILE in text for text in said] == [True, True]
        # A file may have several, and each stays when the page is looked at again.
        expect(watched.page.locator("#connection")).to_have_text("")
        for _ in range(2):
            with watched.page.expect_response("**/page/live"):
                pass
        expect(problems).to_have_text(said)
        expect(watched.page.locator("#models :is(img, b)")).to_have_count(0)


def test_an_orchestrator_that_goes_away_is_told_and_found_again(chromium: Browser, stage: Stage) -> None:
    with opened(chromium, stage.house.base_url) as watched:
        page = watched.page
        is_in_state(page, "speaks", "ready")
        watched.page.context.set_offline(True)
        expect(page.locator("#connection")).to_contain_text("no answer since")
        button(page, "Stop speaks").click()
        expect(page.get_by_role("alert").filter(has_text="Stop speaks")).to_contain_text("does not answer")
        watched.page.context.set_offline(False)
        expect(page.locator("#connection")).to_have_text("")


@pytest.mark.parametrize("element", ["img", "script"])
def test_the_policy_stops_what_is_from_elsewhere_and_these_tests_would_see_it(
    chromium: Browser, stage: Stage, element: str
) -> None:
    script = "e => document.body.append(Object.assign(document.createElement(e), {src: 'http://evil.example/x'}))"
    with pytest.raises(AssertionError, match="evil"), opened(chromium, stage.house.base_url) as watched:
        watched.page.evaluate(script, element)
        eventually(lambda: watched.page.evaluate("1") and watched.complaints, "it is noticed")
