"""0004: relaxed acceptance leaves the context right: judged token by token, over checkpoints, at its edge."""

from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.integration.patches.conftest import StartPatched
from tests.integration.patches.scenario import KINDS, N_PREDICT, PROMPT, top_n
from tests.support import Completion, LlamaClient, ToyBox

pytestmark = pytest.mark.integration

PROMPT_IDS = list(b"Once upon A")


def assert_every_token_is_justified(judge: LlamaClient, answer: Completion, rank: int) -> None:
    """Ask a strict server for the ranking before each token: best, or within the rank and counted as relaxed."""
    # Half a UTF-8 character would be answered without its ranking, which shows raw logits, untouched by the ban.
    whole_characters = [[byte, False] for byte in range(0x80, 0x100)]
    relaxed_n = 0
    for place, token in enumerate(answer.tokens):
        prefix = PROMPT_IDS + list(answer.tokens[:place])
        one = judge.completion(prefix, 1, n_probs=rank, cache_prompt=True, logit_bias=whole_characters)
        best = [entry["id"] for entry in one.raw["completion_probabilities"][0]["top_logprobs"]]
        assert token in best, f"token {place} is {token}, the best {rank} were {best}"
        relaxed_n += token != best[0]
    assert answer.relaxed_n == relaxed_n > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_within_the_rank_and_each_relaxed_one_counted_once(
    start_server: StartServer, patched: StartPatched, unpatched_server: Path, toys: ToyBox, kind: str
) -> None:
    toy = toys.of(kind, trunk=0.25, noise=0.3, miss_rank=3)
    judge = start_server(unpatched_server, toy, "--spec-type", "none").client
    answer = patched(toy).client.completion(PROMPT_IDS, 120, **top_n(4))
    assert answer.accepted_n < answer.draft_n
    assert_every_token_is_justified(judge, answer, 4)


def test_replay_restores_the_state_that_the_draft_began_with(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.replay(trunk=0.25, noise=0.3, miss_rank=3)
    server = patched(toy, "--verbose")
    answer = server.client.completion(PROMPT, N_PREDICT, **top_n(4))
    assert "restoring speculative checkpoint" in server.log_text()
    without = patched(toy, "--ctx-checkpoints", "0", "--cache-ram", "0").client
    again = without.completion(PROMPT, N_PREDICT, **top_n(4))
    assert again.tokens == answer.tokens
    assert (again.relaxed_n, again.accepted_n) == (answer.relaxed_n, answer.accepted_n)


@pytest.mark.parametrize("sampling", ["greedy", "probabilistic"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_replay_with_sampling_keeps_its_counts(
    patched: StartPatched, toys: ToyBox, sampling: str, temperature: float
) -> None:
    toy = toys.replay(trunk=0.1, draft_rank=2)
    client = patched(toy, "--spec-draft-sampling", sampling).client
    for seed in (1, 2, 3):
        answer = client.completion(PROMPT, 200, temperature=temperature, seed=seed, **top_n(3))
        assert 0 < answer.relaxed_n <= answer.accepted_n <= answer.draft_n
        assert len(answer.tokens) == 200
    totals = client.metrics()
    assert totals.total("slot_accepted_tokens_total") == totals.total("slot_accepted_tokens_per_position_total")


def test_a_context_that_runs_full_ends_the_answer(patched: StartPatched, toys: ToyBox) -> None:
    client = patched(toys.mtp(draft_rank=2), "--ctx-size", "256").client
    answer = client.completion(PROMPT, 1000, **top_n(1000))
    assert answer.raw["stop_type"] == "limit"
    assert 200 < len(answer.tokens) <= 256


def test_a_context_that_shifts_goes_on(patched: StartPatched, toys: ToyBox) -> None:
    client = patched(toys.mtp(draft_rank=2), "--ctx-size", "256", "--context-shift").client
    answer = client.completion(PROMPT, 600, **top_n(1000))
    assert len(answer.tokens) == 600
    assert answer.relaxed_n > 0
