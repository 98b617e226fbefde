"""0004: fields of a request, flags, counters and the log."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.integration.patches.conftest import StartPatched
from tests.integration.patches.expected import expect
from tests.integration.patches.scenario import N_MAX, N_PREDICT, PROMPT, top_n
from tests.support import ToyBox, running_server

pytestmark = pytest.mark.integration


def test_a_request_overrides_the_flags_both_ways(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.mtp(gap=0.5, draft_rank=2)
    strict = toy.language.greedy(ord("A"), N_PREDICT)
    off = patched(toy).client
    assert list(off.completion(PROMPT, N_PREDICT).tokens) == strict
    assert off.completion(PROMPT, N_PREDICT, **top_n(2)).relaxed_n > 0
    on = patched(toy, "--spec-draft-relaxed-top-n", "2", "--spec-draft-relaxed-min-ratio", "0.9").client
    assert list(on.completion(PROMPT, N_PREDICT).tokens) == strict
    assert on.completion(PROMPT, N_PREDICT, **{"speculative.relaxed_min_ratio": 0.0}).relaxed_n > 0
    assert on.completion(PROMPT, N_PREDICT, **{"speculative.relaxed_min_ratio": 0.5}).relaxed_n > 0
    assert on.completion(PROMPT, N_PREDICT, **top_n(0), **{"speculative.relaxed_min_ratio": 0.0}).relaxed_n == 0


def test_what_holds_for_a_request_is_echoed(patched: StartPatched, toys: ToyBox) -> None:
    flags = ("--spec-draft-relaxed-top-n", "3", "--spec-draft-relaxed-min-ratio", "0.25")
    client = patched(toys.mtp(), *flags).client
    for fields, holds in (({}, (3, 0.25)), (top_n(9, **{"speculative.relaxed_min_ratio": 0.5}), (9, 0.5))):
        settings = client.completion(PROMPT, 8, **fields).raw["generation_settings"]
        assert (settings["speculative.relaxed_top_n"], settings["speculative.relaxed_min_ratio"]) == holds


@pytest.mark.parametrize(
    "field, value",
    [
        ("speculative.relaxed_top_n", -1),
        ("speculative.relaxed_min_ratio", -0.1),
        ("speculative.relaxed_min_ratio", 1.5),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(patched: StartPatched, toys: ToyBox, field: str, value: float) -> None:
    client = patched(toys.mtp()).client
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.completion(PROMPT, 8, **{field: value})
    assert refused.value.response.status_code == httpx.codes.BAD_REQUEST
    assert field in refused.value.response.text


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--spec-draft-relaxed-top-n", "-1"),
        ("--spec-draft-relaxed-min-ratio", "-0.5"),
        ("--spec-draft-relaxed-min-ratio", "1.5"),
    ],
)
def test_a_flag_out_of_range_is_refused_at_the_start(
    patched_server: Path, toys: ToyBox, tmp_path: Path, flag: str, value: str
) -> None:
    toy = toys.mtp()
    with (
        pytest.raises(RuntimeError, match=re.escape(flag)),
        running_server(patched_server, toy.path, *toy.draft_flags(), flag, value, log=tmp_path / "log"),
    ):
        pass


def test_the_environment_sets_the_flags(patched: StartPatched, toys: ToyBox) -> None:
    names = {"LLAMA_ARG_SPEC_DRAFT_RELAXED_TOP_N": "6", "LLAMA_ARG_SPEC_DRAFT_RELAXED_MIN_RATIO": "0.5"}
    told = patched(toys.mtp(), environment=names).client.props()["speculative"]
    assert (told["relaxed_top_n"], told["relaxed_min_ratio"]) == (6, 0.5)


def test_chat_completions_take_the_fields_too(patched: StartPatched, toys: ToyBox) -> None:
    client = patched(toys.mtp(draft_rank=2)).client
    assert client.chat("hello", max_tokens=40, **top_n(2))["timings"]["draft_n_relaxed"] > 0
    assert client.chat("hello", max_tokens=40)["timings"]["draft_n_relaxed"] == 0


def test_two_slots_keep_their_own_rank_and_counts(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.mtp(noise=0.4, miss_rank=3)
    client = patched(toy, "--parallel", "2").client
    ranks = {0: 0, 1: 3}
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(client.completion, PROMPT, 500, id_slot=slot, **top_n(rank)) for slot, rank in ranks.items()
        ]
    sample, slots = client.metrics(), client.slots()
    for slot, rank in ranks.items():
        answer = running[slot].result()
        expect(toy.language, ord("A"), 500, N_MAX, rank).assert_is(answer)
        assert sample.get("slot_relaxed_tokens_total", slot=str(slot)) == answer.relaxed_n
        assert slots[slot]["speculative_stats"]["n_relaxed"] == answer.relaxed_n
    total = sample.get("spec_decode_num_relaxed_tokens_total")
    assert total == sum(answer.result().relaxed_n for answer in running) > 0


def test_the_log_gives_evidence_of_each_decision(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.mtp(noise=0.4, miss_rank=7, draft_rank=2)
    server = patched(toy, environment={"RELAXED_VERIFY_LOG": "1"})
    answer = server.client.completion(PROMPT, N_PREDICT, **top_n(5))
    lines = server.relaxed_lines()
    accepted = [line for line in lines if "ACCEPT" in line]
    refused = [line for line in lines if "reject" in line]
    assert len(accepted) == answer.relaxed_n > 0
    assert len(refused) > 0
    assert len(accepted) + len(refused) == len(lines)
    for line in lines:
        assert all(re.search(rf"\b{word}=", line) for word in ("pos", "rank", "ratio", "draft", "target_sample")), line
    assert all("rank=2 " in line for line in accepted)
    assert all("rank=7 " in line for line in refused)


@pytest.mark.parametrize("environment, rank", [({"RELAXED_VERIFY_LOG": "1"}, 0), ({}, 5)])
def test_the_log_is_silent_when_off(
    patched: StartPatched, toys: ToyBox, environment: dict[str, str], rank: int
) -> None:
    toy = toys.mtp(noise=0.4, miss_rank=7, draft_rank=2)
    server = patched(toy, environment=environment)
    assert server.client.completion(PROMPT, N_PREDICT, **top_n(rank)).draft_n > 0
    assert server.relaxed_lines() == []
