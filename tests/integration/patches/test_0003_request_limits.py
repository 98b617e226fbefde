"""0003: speculative.n_max, n_min and p_min of one request."""

import math
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import StartServer
from tests.integration.patches.expected import expect
from tests.integration.patches.scenario import KINDS, PROMPT
from tests.support import LlamaClient, Toy, ToyBox
from tests.toys import Knobs, Language

pytestmark = pytest.mark.integration

LOADED_N_MAX = 4
N_PREDICT = 61

# A drafter's sampler keeps its ten best; each is exp(-gap) times as probable as the one before.
GAP = 0.5
DRAFT_PROBABILITY = (1 - math.exp(-GAP)) / (1 - math.exp(-10 * GAP))


@pytest.fixture(params=KINDS)
def toy(request: pytest.FixtureRequest, toys: ToyBox) -> Toy:
    return toys.of(request.param, gap=GAP)


@pytest.fixture
def client(start_server: StartServer, patched_server: Path, toy: Toy) -> LlamaClient:
    flags = ("--parallel", "1", "--spec-draft-n-max", str(LOADED_N_MAX), *toy.draft_flags())
    return start_server(patched_server, toy, *flags).client


def echoed(client: LlamaClient, **fields: Any) -> dict[str, Any]:
    return dict(client.completion(PROMPT, N_PREDICT, **fields).raw["generation_settings"])


@pytest.mark.parametrize("n_max", [1, 2, 3, 4])
def test_a_request_lowers_the_draft_length(client: LlamaClient, toy: Toy, n_max: int) -> None:
    answer = client.completion(PROMPT, N_PREDICT, **{"speculative.n_max": n_max})
    expect(toy.language, ord("A"), N_PREDICT, n_max).assert_is(answer)
    assert answer.raw["generation_settings"]["speculative.n_max"] == n_max


def test_absent_means_what_was_loaded(client: LlamaClient, toy: Toy) -> None:
    answer = client.completion(PROMPT, N_PREDICT)
    expect(toy.language, ord("A"), N_PREDICT, LOADED_N_MAX).assert_is(answer)
    assert answer.raw["generation_settings"]["speculative.n_max"] == LOADED_N_MAX


def test_zero_means_no_drafts_for_this_request_alone(client: LlamaClient, toy: Toy) -> None:
    answer = client.completion(PROMPT, N_PREDICT, **{"speculative.n_max": 0})
    expect(toy.language, ord("A"), N_PREDICT, 0).assert_is(answer)
    assert "draft_n" not in answer.timings
    assert client.completion(PROMPT, N_PREDICT).draft_n > 0


def test_a_request_cannot_raise_the_draft_length(client: LlamaClient, toy: Toy) -> None:
    answer = client.completion(PROMPT, N_PREDICT, **{"speculative.n_max": 64})
    expect(toy.language, ord("A"), N_PREDICT, LOADED_N_MAX).assert_is(answer)


def test_drafts_of_improbable_tokens_are_dropped(client: LlamaClient) -> None:
    assert client.completion(PROMPT, N_PREDICT, **{"speculative.p_min": DRAFT_PROBABILITY - 0.01}).draft_n > 0
    assert client.completion(PROMPT, N_PREDICT, **{"speculative.p_min": DRAFT_PROBABILITY + 0.01}).draft_n == 0
    assert echoed(client, **{"speculative.p_min": 0.25})["speculative.p_min"] == 0.25
    assert echoed(client)["speculative.p_min"] == 0.0


def test_a_request_overrides_p_min_of_the_command_line(
    start_server: StartServer, patched_server: Path, toy: Toy
) -> None:
    flags = ("--spec-draft-p-min", str(DRAFT_PROBABILITY + 0.01), *toy.draft_flags())
    client = start_server(patched_server, toy, *flags).client
    assert client.completion(PROMPT, N_PREDICT).draft_n == 0
    assert client.completion(PROMPT, N_PREDICT, **{"speculative.p_min": 0.0}).draft_n > 0


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_shorter_than_n_min_are_dropped(
    start_server: StartServer, patched_server: Path, toys: ToyBox, kind: str
) -> None:
    # The drafter is sure of every other token only, so with p_min no draft is longer than one token. At the end
    # of the request, where n_min is lowered to the room that is left, it is unsure.
    said = Language(Knobs()).greedy(ord("A"), N_PREDICT)
    toy = toys.of(kind, unsure=tuple(said[(N_PREDICT - 3) % 2 :: 2]))
    client = start_server(patched_server, toy, "--spec-draft-n-max", str(LOADED_N_MAX), *toy.draft_flags()).client
    single = client.completion(PROMPT, N_PREDICT, **{"speculative.p_min": 0.2, "speculative.n_min": 1})
    assert single.draft_n == single.step_n == single.accepted_n > 0
    pairs = client.completion(PROMPT, N_PREDICT, **{"speculative.p_min": 0.2, "speculative.n_min": 2})
    assert pairs.draft_n == 0
    assert pairs.raw["generation_settings"]["speculative.n_min"] == 2
    assert list(single.tokens) == list(pairs.tokens) == said


@pytest.mark.parametrize(
    "field, value",
    [
        ("speculative.n_max", -1),
        ("speculative.n_min", -1),
        ("speculative.p_min", -0.1),
        ("speculative.p_min", 1.5),
        ("speculative.n_max", "three"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    start_server: StartServer, patched_server: Path, toys: ToyBox, field: str, value: object
) -> None:
    toy = toys.mtp()
    client = start_server(patched_server, toy, *toy.draft_flags()).client
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.completion(PROMPT, 8, **{field: value})
    assert refused.value.response.status_code == httpx.codes.BAD_REQUEST
    assert field in refused.value.response.text
    assert client.completion(PROMPT, 8).draft_n > 0


@pytest.mark.parametrize("kind", ["mtp", "hybrid"])
def test_mtp_stops_drafting_at_the_limit_rather_than_cutting_the_draft(
    start_server: StartServer, patched_server: Path, toys: ToyBox, kind: str
) -> None:
    toy = toys.of(kind)
    flags = ("--verbose", "--spec-draft-n-max", str(LOADED_N_MAX), *toy.draft_flags())
    server = start_server(patched_server, toy, *flags)
    server.client.completion(PROMPT, N_PREDICT, **{"speculative.n_max": 2})
    assert "draft candidate   0, pos   1:" in server.log_text()
    assert "draft candidate   0, pos   2:" not in server.log_text()
    assert "truncating draft" not in server.log_text()


def test_zero_and_a_limit_hold_for_ngram_drafts_too(
    start_server: StartServer, patched_server: Path, toys: ToyBox
) -> None:
    toy = toys.mtp()
    client = start_server(patched_server, toy, "--spec-type", "ngram-simple").client
    # Text that repeats itself: one walk through the alphabet, and the beginning of the next.
    prompt = toy.language.greedy(ord("A"), 150)
    free = client.completion(prompt, N_PREDICT)
    assert free.draft_n / free.step_n > 5
    limited = client.completion(prompt, N_PREDICT, **{"speculative.n_max": 5})
    assert 0 < limited.draft_n / limited.step_n <= 5
    off = client.completion(prompt, N_PREDICT, **{"speculative.n_max": 0})
    assert "draft_n" not in off.timings
    assert free.tokens == limited.tokens == off.tokens


def test_chat_completions_take_the_fields_too(client: LlamaClient) -> None:
    assert "draft_n" not in client.chat("hello", max_tokens=20, **{"speculative.n_max": 0})["timings"]
    assert client.chat("hello", max_tokens=20)["timings"]["draft_n"] > 0


def test_requests_of_two_slots_keep_their_own_limits(
    start_server: StartServer, patched_server: Path, toys: ToyBox
) -> None:
    toy = toys.mtp()
    client = start_server(patched_server, toy, "--parallel", "2", "--spec-draft-n-max", "4", *toy.draft_flags()).client
    long = client.stream(PROMPT, 600, id_slot=0, **{"speculative.n_max": 1})
    next(long)
    short = client.completion(PROMPT, N_PREDICT, id_slot=1, **{"speculative.n_max": 3})
    expect(toy.language, ord("A"), N_PREDICT, 3).assert_is(short)
    *_, last = long
    assert last["timings"]["draft_n"] == expect(toy.language, ord("A"), 600, 1).draft_n
