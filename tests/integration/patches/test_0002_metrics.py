"""0002: exact metrics, counters that move during an answer, series of each slot; /props and /slots."""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support import Completion, LlamaClient, Samples, Toy, ToyBox, eventually

pytestmark = pytest.mark.integration

PROMPT = "hello A"
N_MAX = 3
LONG_ANSWER_TOKENS = 2000
BEYOND_SIX_DIGITS = 1_234_567
SLOTS = ("0", "1")

# Counters of one slot, and the counter of all slots that they add up to.
SLOT_TO_TOTAL = {
    "slot_predicted_tokens_total": "tokens_predicted_total",
    "slot_predicted_seconds_total": "tokens_predicted_seconds_total",
    "slot_draft_tokens_total": "spec_decode_num_draft_tokens_total",
    "slot_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
    "slot_relaxed_tokens_total": "spec_decode_num_relaxed_tokens_total",
    "slot_verification_steps_total": "spec_decode_num_drafts_total",
}
MOVING = [name for name in SLOT_TO_TOTAL if "relaxed" not in name]


@pytest.fixture
def toy(toys: ToyBox) -> Toy:
    return toys.mtp(noise=0.3, miss_rank=3)


@pytest.fixture
def client(start_server: StartServer, patched_server: Path, toy: Toy) -> LlamaClient:
    flags = ("--parallel", "2", "--ctx-size", "16384", "--spec-draft-n-max", str(N_MAX), *toy.draft_flags())
    return start_server(patched_server, toy, *flags).client


@contextmanager
def answering(client: LlamaClient, n_predict: int, id_slot: int) -> Iterator[Future[Completion]]:
    """An answer that is being generated on a slot; the block starts once the slot is busy."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.completion, PROMPT, n_predict, id_slot=id_slot)
        eventually(lambda: client.metrics().get("slot_busy", slot=str(id_slot)) == 1, f"slot {id_slot} is busy")
        yield answer


def scrapes_during(client: LlamaClient, answer: Future[Completion], slot: str) -> list[Samples]:
    """Scrapes that all saw the slot at work."""
    taken: list[Samples] = []
    while not answer.done():
        sample = client.metrics()
        if sample.get("slot_busy", slot=slot) == 1:
            taken.append(sample)
    return taken


def test_counters_move_while_an_answer_is_generated(client: LlamaClient) -> None:
    with answering(client, LONG_ANSWER_TOKENS, id_slot=1) as answer:
        seen = scrapes_during(client, answer, "1")
    for name in MOVING:
        for values in (
            [sample.get(name, slot="1") for sample in seen],
            [sample.get(SLOT_TO_TOTAL[name]) for sample in seen],
        ):
            assert values == sorted(values), name
            assert len(set(values)) >= 5, f"{name} took only the values {sorted(set(values))}"
    assert {sample.get("slot_predicted_tokens_total", slot="0") for sample in seen} == {0}
    assert {sample.get("slot_busy", slot="0") for sample in seen} == {0}


def test_no_scrape_counts_an_answer_twice_at_its_end(client: LlamaClient) -> None:
    # Live counts of running slots are added to those of finished answers: the moment of hand-over must not show.
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(lambda: [client.completion(PROMPT, 30, id_slot=0) for _ in range(60)])
        values = []
        while not work.done():
            values.append(client.metrics().get("tokens_predicted_total"))
    assert values == sorted(values)
    assert client.metrics().get("tokens_predicted_total") == 60 * 30


def test_slots_add_up_to_the_totals_and_to_what_the_answers_said(client: LlamaClient) -> None:
    relaxed = {"speculative.relaxed_top_n": 3}
    answers = {
        "0": [client.completion(PROMPT, 90, id_slot=0), client.completion(PROMPT, 41, id_slot=0, **relaxed)],
        "1": [client.completion(PROMPT, 200, id_slot=1, **relaxed)],
    }
    sample = client.metrics()
    for slot, given in answers.items():
        said = {
            "slot_predicted_tokens_total": sum(answer.timings["predicted_n"] for answer in given),
            "slot_predicted_seconds_total": sum(answer.timings["predicted_ms"] for answer in given) / 1000,
            "slot_draft_tokens_total": sum(answer.draft_n for answer in given),
            "slot_accepted_tokens_total": sum(answer.accepted_n for answer in given),
            "slot_relaxed_tokens_total": sum(answer.relaxed_n for answer in given),
            "slot_verification_steps_total": sum(answer.step_n for answer in given),
        }
        for name, value in said.items():
            assert value > 0, name
            # A clock that counts microseconds: exact to one of them for each answer.
            assert sample.get(name, slot=slot) == pytest.approx(value, abs=2e-6), (name, slot)
    for name, total in SLOT_TO_TOTAL.items():
        assert sum(sample.get(name, slot=slot) for slot in SLOTS) == pytest.approx(sample.get(total), abs=2e-6)


def test_accepted_tokens_by_position_add_up(client: LlamaClient) -> None:
    client.completion(PROMPT, 90, id_slot=0)
    client.completion(PROMPT, 55, id_slot=1)
    sample = client.metrics()
    positions = [str(position) for position in range(N_MAX)]
    for slot in SLOTS:
        by_position = [
            sample.get("slot_accepted_tokens_per_position_total", slot=slot, position=position)
            for position in positions
        ]
        assert by_position == sorted(by_position, reverse=True)
        assert sum(by_position) == sample.get("slot_accepted_tokens_total", slot=slot) > 0
    for position in positions:
        total = sample.get("spec_decode_num_accepted_tokens_per_pos_total", position=position)
        of_slots = (
            sample.get("slot_accepted_tokens_per_position_total", slot=slot, position=position) for slot in SLOTS
        )
        assert sum(of_slots) == total


def test_a_slot_that_never_worked_has_all_its_series(client: LlamaClient) -> None:
    sample = client.metrics()
    assert all(sample.get(name, slot=slot) == 0 for name in SLOT_TO_TOTAL for slot in SLOTS)


def cached_prompt_tokens(client: LlamaClient, at_least: int) -> int:
    """Read one prompt from the cache until so many tokens have come from there; the exact number.

    Cached tokens are the one counter that reaches millions within a second.
    """
    prompt = [ord("x")] * 8000
    total = 0
    while total < at_least:
        total += client.completion(prompt, 1, id_slot=0, cache_prompt=True).timings["cache_n"]
    return total


def test_a_counter_beyond_a_million_keeps_every_digit(client: LlamaClient) -> None:
    total = cached_prompt_tokens(client, BEYOND_SIX_DIGITS)
    assert f"\nllamacpp:prompt_tokens_cached_total {total}\n" in client.metrics().text


def test_the_unpatched_server_drops_digits_beyond_a_million(
    start_server: StartServer, toys: ToyBox, unpatched_server: Path
) -> None:
    client = start_server(unpatched_server, toys.mtp(), "--ctx-size", "16384", "--parallel", "2").client
    total = cached_prompt_tokens(client, BEYOND_SIX_DIGITS)
    assert client.metrics().get("prompt_tokens_cached_total") != total


def test_seconds_keep_microseconds(client: LlamaClient) -> None:
    answers = [client.completion(PROMPT, 400, id_slot=0) for _ in range(3)]
    said = sum(answer.timings["predicted_ms"] for answer in answers) / 1000
    assert client.metrics().get("tokens_predicted_seconds_total") == pytest.approx(said, abs=4e-6)


def test_a_scrape_neither_wakes_a_sleeping_server_nor_loses_its_counts(
    start_server: StartServer, patched_server: Path, toy: Toy
) -> None:
    client = start_server(patched_server, toy, "--sleep-idle-seconds", "1", *toy.draft_flags()).client
    answer = client.completion(PROMPT, 60)
    eventually(lambda: client.props()["is_sleeping"], "the server sleeps")
    for _ in range(20):
        sample = client.metrics()
        assert sample.total("slot_predicted_tokens_total") == answer.timings["predicted_n"]
        assert sample.total("slot_draft_tokens_total") == answer.draft_n > 0
        assert sample.get("tokens_predicted_total") == answer.timings["predicted_n"]
        assert sample.total("slot_busy") == 0
        assert client.props()["is_sleeping"]
    woken = client.completion(PROMPT, 60)
    counted = client.metrics().get("tokens_predicted_total")
    assert counted == answer.timings["predicted_n"] + woken.timings["predicted_n"]


def test_props_tell_how_the_server_speculates(start_server: StartServer, patched_server: Path, toy: Toy) -> None:
    limits = ("--spec-draft-n-max", "5", "--spec-draft-n-min", "1", "--spec-draft-p-min", "0.25")
    relaxed = ("--spec-draft-relaxed-top-n", "7", "--spec-draft-relaxed-min-ratio", "0.125")
    told = start_server(patched_server, toy, *toy.draft_flags(), *limits, *relaxed).client.props()["speculative"]
    assert [name for name in told.pop("types") if name != "none"] == ["draft-mtp"]
    assert told == {"n_max": 5, "n_min": 1, "p_min": 0.25, "relaxed_top_n": 7, "relaxed_min_ratio": 0.125}


def test_props_tell_that_a_server_does_not_speculate(start_server: StartServer, patched_server: Path, toy: Toy) -> None:
    told = start_server(patched_server, toy, "--spec-type", "none").client.props()["speculative"]
    assert [name for name in told["types"] if name != "none"] == []
    assert told["relaxed_top_n"] == 0


def test_slots_tell_the_draft_statistics_of_the_last_answer(client: LlamaClient) -> None:
    client.completion(PROMPT, 120, id_slot=1)
    answer = client.completion(PROMPT, 70, id_slot=1, **{"speculative.relaxed_top_n": 3})
    told = client.slots()[1]["speculative_stats"]
    assert told["n_draft"] == answer.draft_n > 0
    assert told["n_accepted"] == answer.accepted_n == sum(told["accepted_per_position"])
    assert told["n_relaxed"] == answer.relaxed_n > 0
    assert told["n_steps"] == answer.step_n


def test_slots_tell_the_draft_statistics_of_a_running_answer(client: LlamaClient) -> None:
    with answering(client, LONG_ANSWER_TOKENS, id_slot=0) as answer:
        seen = []
        while not answer.done():
            slot = client.slots()[0]
            if slot["is_processing"]:
                seen.append(slot["speculative_stats"]["n_draft"])
    assert seen == sorted(seen)
    assert len(set(seen)) >= 5
    assert max(seen) <= answer.result().draft_n


def test_the_old_series_are_all_there(
    client: LlamaClient, start_server: StartServer, toy: Toy, unpatched_server: Path
) -> None:
    flags = ("--parallel", "2", *toy.draft_flags())
    stock = start_server(unpatched_server, toy, *flags).client
    for one in (client, stock):
        one.completion(PROMPT, 30)
    series = re.compile(r"^llamacpp:\w+", re.MULTILINE)
    assert set(series.findall(stock.metrics().text)) <= set(series.findall(client.metrics().text))
