"""0010: `metrics.speculative_decoding` of one request, the object of vllm-project/vllm#48915."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import StartServer
from tests.integration.patches.conftest import StartPatched
from tests.integration.patches.expected import Expected, expect
from tests.integration.patches.scenario import KINDS, N_MAX, N_PREDICT, PROMPT, top_n
from tests.support import Completion, LlamaClient, ToyBox

pytestmark = pytest.mark.integration

Json = dict[str, Any]
ASKED = {"speculative.metrics": True}
CHAT: Json = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "temperature": 0}
TEXT: Json = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
NATIVE: Json = {"prompt": PROMPT, "n_predict": 60, "temperature": 0}
RESPONSES: Json = {"input": "hello", "max_output_tokens": 60, "temperature": 0}
USAGE = {"stream_options": {"include_usage": True}}
NOTHING_DRAFTED = {
    "mean_acceptance_length": 1.0,
    "draft_acceptance_rate": 0.0,
    "num_spec_steps": 0,
    "num_accepted_draft_tokens": 0,
    "num_draft_tokens": 0,
}


@pytest.fixture
def client(patched: StartPatched, toys: ToyBox) -> LlamaClient:
    """A server whose drafts are refused now and then."""
    return patched(toys.mtp(noise=0.3, miss_rank=3)).client


def metrics_of(answer: Json) -> Json:
    """The object of an answer; nothing stands beside it."""
    assert list(answer["metrics"]) == ["speculative_decoding"]
    return dict(answer["metrics"]["speculative_decoding"])


def histogram(accepted_by_step: list[int], n_max: int) -> list[int]:
    counts = Counter(accepted_by_step)
    return [counts[accepted] for accepted in range(n_max + 1)]


def assert_adds_up(told: Json, timings: Json) -> None:
    """Every field against `timings`, which count the same work in another way."""
    drafted, accepted, steps = (int(timings.get(f"draft_n{name}", 0)) for name in ("", "_accepted", "_steps"))
    buckets = told["acceptance_histogram"]
    assert (told["num_draft_tokens"], told["num_accepted_draft_tokens"]) == (drafted, accepted)
    assert told["num_spec_steps"] == sum(buckets) == steps
    assert sum(length * count for length, count in enumerate(buckets)) == accepted
    assert len(buckets) == told["num_spec_tokens"] + 1
    assert told["mean_acceptance_length"] == (1 + accepted / steps if steps else 1.0)
    assert told["draft_acceptance_rate"] == (accepted / drafted if drafted else 0.0)


def assert_is_what_was_expected(told: Json, expected: Expected, n_max: int) -> None:
    assert told["acceptance_histogram"] == histogram(expected.accepted_by_step, n_max)
    assert told["num_draft_tokens"] == expected.draft_n
    assert told["num_spec_tokens"] == n_max


def chunks(client: LlamaClient, path: str, body: Json) -> Iterator[Json]:
    # llama-server may close a connection at the end of a stream, and the next request must not meet that.
    headers = {"connection": "close"}
    with client.http.stream("POST", path, json=body | {"stream": True}, headers=headers) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_object_is_that_of_the_verification_steps(
    patched: StartPatched, toys: ToyBox, kind: str, rank: int
) -> None:
    toy = toys.of(kind, noise=0.3, miss_rank=3)
    client = patched(toy).client
    answer = client.completion(PROMPT, N_PREDICT, **top_n(rank), **ASKED)
    expected = expect(toy.language, ord("A"), N_PREDICT, N_MAX, rank, replays=kind == "replay")
    expected.assert_is(answer)
    told = metrics_of(answer.raw)
    assert_is_what_was_expected(told, expected, N_MAX)
    assert_adds_up(told, answer.timings)
    assert len([count for count in told["acceptance_histogram"] if count]) > 1 or rank


def test_the_object_agrees_with_the_counters_of_the_slot(client: LlamaClient) -> None:
    told = [metrics_of(client.completion(PROMPT, n, **ASKED, **top_n(3 * (n > 50))).raw) for n in (41, 90)]
    sample = client.metrics()
    for field, series in {
        "num_draft_tokens": "slot_draft_tokens_total",
        "num_accepted_draft_tokens": "slot_accepted_tokens_total",
        "num_spec_steps": "slot_verification_steps_total",
    }.items():
        assert sum(one[field] for one in told) == sample.get(series, slot="0") > 0
    for position in range(N_MAX):
        more = sum(sum(one["acceptance_histogram"][position + 1 :]) for one in told)
        assert more == sample.get("slot_accepted_tokens_per_position_total", slot="0", position=str(position))


def test_ngram_drafts_are_reported_up_to_the_longest_draft(
    start_server: StartServer, patched_server: Path, toys: ToyBox
) -> None:
    toy = toys.mtp()
    client = start_server(patched_server, toy, "--parallel", "1", "--spec-type", "ngram-simple").client
    # Text that repeats itself: one walk through the alphabet, and the beginning of the next.
    answer = client.completion(toy.language.greedy(ord("A"), 150), N_PREDICT, **ASKED)
    told = metrics_of(answer.raw)
    assert_adds_up(told, answer.timings)
    assert told["num_spec_tokens"] == client.props()["speculative"]["n_max"] > N_MAX
    assert told["num_draft_tokens"] > 0


@pytest.mark.parametrize("n_max", [0, 2])
def test_the_limit_of_the_request_bounds_the_histogram(patched: StartPatched, toys: ToyBox, n_max: int) -> None:
    toy = toys.mtp(noise=0.3, miss_rank=3)
    answer = patched(toy).client.completion(PROMPT, N_PREDICT, **ASKED, **{"speculative.n_max": n_max})
    told = metrics_of(answer.raw)
    assert_is_what_was_expected(told, expect(toy.language, ord("A"), N_PREDICT, n_max), n_max)
    assert_adds_up(told, answer.timings)


def test_an_answer_without_drafts_has_a_histogram_of_zeros(client: LlamaClient) -> None:
    client.completion(PROMPT, 60, **ASKED)
    answer = client.completion(PROMPT, 1, **ASKED)
    expected = NOTHING_DRAFTED | {"acceptance_histogram": [0] * (N_MAX + 1), "num_spec_tokens": N_MAX}
    assert metrics_of(answer.raw) == expected


@pytest.mark.parametrize(
    "path, body",
    [
        ("/completion", NATIVE),
        ("/v1/completions", TEXT),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", RESPONSES),
    ],
)
def test_a_stream_tells_the_same_in_its_last_chunk(client: LlamaClient, path: str, body: Json) -> None:
    plain = client.post(path, body | ASKED)
    told = metrics_of(plain)
    assert told["num_draft_tokens"] > told["num_accepted_draft_tokens"] > 0
    if "timings" in plain:
        assert_adds_up(told, plain["timings"])
    for options in ({}, USAGE) if "v1" in path else ({},):
        *others, last = chunks(client, path, body | ASKED | options)
        assert metrics_of(last) == told
        assert_adds_up(told, last["timings"])
        assert not any("metrics" in chunk for chunk in others)
        assert ("usage" in last) or not options or path == "/v1/responses"


@pytest.mark.parametrize("fields", [{}, {"speculative.metrics": False}, {"speculative.metrics": None}])
@pytest.mark.parametrize(
    "path, body", [("/completion", NATIVE), ("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
)
def test_who_does_not_ask_gets_the_answer_as_it_was(client: LlamaClient, path: str, body: Json, fields: Json) -> None:
    asked, unasked = client.post(path, body | ASKED), client.post(path, body | fields)
    assert list(unasked) == [name for name in asked if name != "metrics"]
    assert list(unasked["timings"]) == list(asked["timings"])
    if "generation_settings" in unasked:
        assert unasked["generation_settings"] == asked["generation_settings"]
    assert not any("metrics" in chunk for chunk in chunks(client, path, body | fields | USAGE))


def test_asking_changes_no_token(client: LlamaClient) -> None:
    asked, unasked = client.completion(PROMPT, N_PREDICT, **ASKED), client.completion(PROMPT, N_PREDICT)
    assert asked.tokens == unasked.tokens
    assert counts(asked) == counts(unasked)


def counts(answer: Completion) -> tuple[int, int, int]:
    return answer.draft_n, answer.accepted_n, answer.step_n


def test_null_where_the_server_does_not_speculate(
    start_server: StartServer, patched_server: Path, toys: ToyBox
) -> None:
    client = start_server(patched_server, toys.mtp(), "--spec-type", "none").client
    assert client.chat("hello", max_tokens=20, **ASKED)["metrics"] == {"speculative_decoding": None}


def test_null_where_an_answer_covers_several_generations(patched: StartPatched, toys: ToyBox) -> None:
    client = patched(toys.mtp(), "--parallel", "2").client
    null = {"speculative_decoding": None}
    assert client.post("/v1/chat/completions", CHAT | ASKED | {"n": 2})["metrics"] == null
    ends = [chunk for chunk in chunks(client, "/v1/chat/completions", CHAT | ASKED | {"n": 2}) if "metrics" in chunk]
    assert [chunk["metrics"] for chunk in ends] == [null, null]
    assert client.post("/v1/completions", TEXT | ASKED | {"prompt": [PROMPT, "B"]})["metrics"] == null
    native = client.http.post("/completion", json=NATIVE | ASKED | {"prompt": [PROMPT, "B"]}).json()
    for answer in native:
        assert_adds_up(metrics_of(answer), answer["timings"])


def test_slots_at_work_together_report_their_own_steps(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.mtp(noise=0.3, miss_rank=3)
    client = patched(toy, "--parallel", "2").client
    long = client.stream(PROMPT, 400, id_slot=0, **ASKED)
    next(long)
    short = client.completion(PROMPT, N_PREDICT, id_slot=1, **ASKED, **top_n(3))
    *_, last = long
    assert_is_what_was_expected(metrics_of(last), expect(toy.language, ord("A"), 400, N_MAX), N_MAX)
    assert_is_what_was_expected(metrics_of(short.raw), expect(toy.language, ord("A"), N_PREDICT, N_MAX, 3), N_MAX)


def test_response_fields_can_name_it(client: LlamaClient) -> None:
    named = {"response_fields": ["timings", "metrics/speculative_decoding"]}
    answer = client.post("/completion", NATIVE | ASKED | named)
    assert_adds_up(answer["metrics/speculative_decoding"], answer["timings"])


def test_a_value_that_is_no_boolean_is_refused_by_name(client: LlamaClient) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.completion(PROMPT, 8, **{"speculative.metrics": "yes"})
    assert refused.value.response.status_code == httpx.codes.BAD_REQUEST
    assert "speculative.metrics" in refused.value.response.text


def test_the_unpatched_server_ignores_the_field(
    start_server: StartServer, unpatched_server: Path, toys: ToyBox
) -> None:
    toy = toys.mtp()
    client = start_server(unpatched_server, toy, *toy.draft_flags()).client
    assert "metrics" not in client.completion(PROMPT, 8, **ASKED).raw
    assert "metrics" not in client.chat("hello", max_tokens=8, **ASKED)
