"""What an operator does with the page, on a real server: load, watch, swap, bring, cancel, chat."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from orchestrator.cli.statistics import statistics_line
from tests.support import eventually
from tests.support.browser import button, entry, figure, is_in_state, opened
from tests.support.orchestrator import Json, Orchestrator

pytestmark = pytest.mark.integration


@pytest.fixture
def page(chromium: Browser, house: Orchestrator) -> Iterator[Page]:
    for model in ("toy", "plain"):
        house.command(model, "stop").raise_for_status()
    with opened(chromium, house.base_url) as watched:
        yield watched.page


def figures(house: Orchestrator, slot: int) -> Json:
    [model] = [m for m in house.http.get("/api/speculation").json()["models"] if m["model"] == "toy"]
    return dict(model["slots"][slot])


def test_a_model_is_loaded_and_its_slots_counters_move(page: Page, house: Orchestrator) -> None:
    button(page, "Start toy").click()
    is_in_state(page, "toy", "ready")
    expect(page.locator("#said")).to_contain_text("ready loaded and warmed up")
    slots = entry(page, "toy").locator("[data-slot]")
    expect(slots).to_have_count(3)
    ask(page, "toy", "hello", max_tokens=100_000_000, temperature=0)

    seen: list[int] = []

    def moved() -> bool:
        number = max(int(figure(page, "toy", slot, "generated").replace(",", "") or 0) for slot in "01")
        if number not in seen:
            seen.append(number)
        return len(seen) >= 3

    eventually(moved, "the counters move while the answer comes")
    assert seen == sorted(seen)
    busy = entry(page, "toy").locator("tr.busy")
    expect(busy).to_have_count(1)
    slot = busy.get_attribute("data-slot") or ""
    assert "%" in figure(page, "toy", slot, "acceptance")
    assert float(figure(page, "toy", slot, "rate").replace(",", "")) > 0
    other = str(1 - int(slot))
    assert figure(page, "toy", other, "rate") == "no traffic"
    button(page, "Stop").click()
    expect(page.locator(".statistics")).to_have_text("stopped")
    told = figures(house, int(slot))
    shown = eventually(lambda: figure(page, "toy", slot, "drafted") == f"{told['draft_tokens']:,}", "the last figures")
    assert shown


def ask(page: Page, model: str, text: str, **fields: float) -> None:
    page.select_option("#chat-model", model)
    page.locator("details.options").evaluate("e => e.open = true")
    for name in ("max_tokens", "temperature"):
        page.fill(f"[data-field={name}]", str(fields.get(name, "")))
    page.fill("#chat-text", text)
    page.press("#chat-text", "Enter")


def test_a_chat_shows_what_drafting_did(page: Page, house: Orchestrator) -> None:
    with page.expect_response("**/v1/chat/completions") as caught:
        ask(page, "toy", "hello", max_tokens=40, temperature=0)
    caught.value.finished()
    chunks = caught.value.text()
    timings = eventually(lambda: timings_in(chunks), "the answer's timings")
    expect(page.locator(".statistics")).to_contain_text(statistics_line(timings))
    said = house.chat("toy", max_tokens=40, temperature=0).json()["choices"][0]["message"]["content"]
    assert page.locator(".answer .body").inner_text() == said
    # The conversation goes on: the second request holds the first answer.
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "toy", "and now?", max_tokens=8)
    messages = json.loads(asked.value.post_data or "{}")["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == said
    expect(page.locator(".statistics").nth(1)).to_contain_text("tok/s")
    assert page.locator("#chat-log").evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 2
    button(page, "Clear chat").click()
    expect(page.locator(".answer")).to_have_count(0)


def test_the_statistics_line_is_that_of_the_command(page: Page) -> None:
    drafted = {"draft_n": 32, "draft_n_accepted": 30, "predicted_per_second": 224.04}
    cases: list[Json] = [{}, {"predicted_per_second": 61.26}, drafted, drafted | {"draft_n_steps": 4}]
    cases += [drafted | {"draft_n_steps": 4, "draft_n_relaxed": 3}, {"draft_n": 7, "draft_n_accepted": 0}]
    script = "async cases => { const m = await import('/page/chat.js'); return cases.map(m.statisticsLine); }"
    assert page.evaluate(script, cases) == [statistics_line(case) for case in cases]


def timings_in(stream: str) -> Json:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return next((chunk["timings"] for chunk in chunks if "timings" in chunk), {})


def test_a_swap_is_shown_before_it_is_done(page: Page, house: Orchestrator) -> None:
    house.start_model("toy")
    is_in_state(page, "toy", "ready")
    button(page, "Swap in plain").click()
    dialog = page.get_by_role("dialog", name="Swap in plain?")
    expect(dialog.get_by_role("listitem")).to_have_count(2)
    expect(dialog).to_contain_text("stop toy: makes room for plain")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert house.view("toy")["state"] == "ready" and house.view("plain")["state"] == "stopped"
    button(page, "Swap in plain").click()
    dialog.get_by_role("button", name="Swap", exact=True).click()
    is_in_state(page, "plain", "ready")
    is_in_state(page, "toy", "stopped")
    expect(entry(page, "plain")).to_contain_text("no speculation")
    expect(page.locator("#events")).to_contain_text("loaded and warmed up")


def test_a_restart_is_a_new_process(page: Page, house: Orchestrator) -> None:
    pid = house.start_model("plain").pid
    is_in_state(page, "plain", "ready")
    button(page, "Restart plain").click()
    eventually(lambda: house.view("plain")["pid"] not in (None, pid), "it is another process")
    is_in_state(page, "plain", "ready")
    button(page, "Stop plain").click()
    is_in_state(page, "plain", "stopped")


def test_a_download_is_started_watched_and_cancelled(page: Page, house: Orchestrator) -> None:
    expect(entry(page, "slow")).to_contain_text("Not on disk: slow-F32.gguf.")
    button(page, "Pull slow").click()
    job = page.locator('[data-job="pull slow"]').first
    expect(job).to_contain_text("MB/s")
    expect(job).to_contain_text("left")
    bar = job.get_by_role("progressbar")
    began = int(bar.get_attribute("value") or 0)
    eventually(lambda: int(bar.get_attribute("value") or 0) > began, "the bar moves")
    expect(entry(page, "slow")).to_contain_text("Its files are being brought")
    button(page, "Cancel pull slow").click()
    expect(job).to_have_attribute("data-state", "cancelled")
    expect(page.locator("#said")).to_contain_text("pull slow cancelled")
    assert house.http.get("/api/jobs").json()["jobs"][0]["state"] == "cancelled"
    expect(button(page, "Pull slow")).to_be_visible()


def test_a_refusal_is_told_with_its_hint(page: Page) -> None:
    ask(page, "slow", "hello")
    notice = page.get_by_role("alert").filter(has_text="Chat with slow")
    expect(notice).to_contain_text("is not complete")
    expect(notice).to_contain_text("slipstream pull slow")
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)


def test_without_javascript_the_state_is_there(chromium: Browser, house: Orchestrator) -> None:
    house.start_model("plain")
    with opened(chromium, house.base_url, java_script_enabled=False) as watched:
        is_in_state(watched.page, "plain", "ready")
        expect(watched.page.get_by_role("button")).to_have_count(0)
        expect(watched.page.get_by_text("Without JavaScript this page shows")).to_be_visible()
