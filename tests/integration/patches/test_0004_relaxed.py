"""0004: relaxed acceptance, its rule: who is accepted, who never is, and that off means off."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.integration.patches.conftest import StartPatched
from tests.integration.patches.expected import expect
from tests.integration.patches.scenario import KINDS, N_MAX, N_PREDICT, PROMPT, top_n
from tests.support import LlamaClient, ToyBox
from tests.toys import Knobs, Language
from tests.toys.vocabulary import CONTROL, END_OF_TEXT, IM_END, SIZE, TOOL

pytestmark = pytest.mark.integration

FLAGS = ("--parallel", "1", "--spec-draft-n-max", str(N_MAX))

# A token and the target's choice after it, at a place in the answer where a draft stands (steps are of N_MAX + 1).
PLAIN = Language(Knobs())
BEFORE, CHOICE = PLAIN.greedy(ord("A"), 19)[-2:]


def answers(client: LlamaClient, **fields: Any) -> list[tuple[bytes, tuple[int, ...], int, int]]:
    """Greedy and sampled answers, with what was drafted and accepted on the way."""
    greedy = [client.completion(PROMPT, 200, **fields)]
    sampled = [client.completion(PROMPT, 120, temperature=0.9, seed=seed, **fields) for seed in range(1, 5)]
    return [(a.content.encode(), a.tokens, a.draft_n, a.accepted_n) for a in greedy + sampled]


@pytest.mark.parametrize(
    "kind, sampling", [*((kind, "greedy") for kind in KINDS), ("pair", "probabilistic"), ("replay", "probabilistic")]
)
def test_off_is_byte_identical_to_the_unpatched_server(
    start_server: StartServer, patched: StartPatched, unpatched_server: Path, toys: ToyBox, kind: str, sampling: str
) -> None:
    toy = toys.of(kind, trunk=0.2, noise=0.3)
    flags = ("--spec-draft-sampling", sampling)
    stock = answers(start_server(unpatched_server, toy, *FLAGS, *toy.draft_flags(), *flags).client)
    assert any(0 < accepted < drafted for _, _, drafted, accepted in stock)
    assert answers(patched(toy, *flags).client) == stock
    assert answers(patched(toy, *flags, "--spec-draft-relaxed-top-n", "0").client) == stock
    lenient = patched(toy, *flags, "--spec-draft-relaxed-top-n", "9", "--spec-draft-relaxed-min-ratio", "0.1")
    assert answers(lenient.client, **top_n(0)) == stock
    assert answers(lenient.client) != stock


@pytest.mark.parametrize("kind", ["mtp", "hybrid"])
def test_off_is_identical_for_a_sampled_mtp_draft_until_the_draft_meets_the_end_of_the_request(
    start_server: StartServer, patched: StartPatched, unpatched_server: Path, toys: ToyBox, kind: str
) -> None:
    # There 0003 draws no drafts that would be cut off, so the drafter's random numbers differ from then on.
    toy = toys.of(kind, trunk=0.2, noise=0.3)
    flags = ("--spec-draft-sampling", "probabilistic")
    stock = start_server(unpatched_server, toy, *FLAGS, *toy.draft_flags(), *flags).client
    ours = patched(toy, *flags).client
    for seed in range(1, 9):
        theirs, mine = (one.completion(PROMPT, 120, temperature=0.9, seed=seed) for one in (stock, ours))
        assert mine.tokens[: 120 - N_MAX] == theirs.tokens[: 120 - N_MAX]


@pytest.mark.parametrize("kind", KINDS)
def test_one_is_byte_identical_to_the_unpatched_server_at_temperature_0(
    start_server: StartServer, patched: StartPatched, unpatched_server: Path, toys: ToyBox, kind: str
) -> None:
    toy = toys.of(kind, trunk=0.2, noise=0.3)
    stock = start_server(unpatched_server, toy, *FLAGS, *toy.draft_flags()).client.completion(PROMPT, 400)
    answer = patched(toy, "--spec-draft-relaxed-top-n", "1").client.completion(PROMPT, 400)
    assert (answer.content, answer.tokens) == (stock.content, stock.tokens)
    assert (answer.draft_n, answer.accepted_n) == (stock.draft_n, stock.accepted_n)
    assert answer.relaxed_n == 0


@pytest.mark.parametrize("top_k", [0, 40])
def test_a_tie_for_the_first_rank_is_not_relaxed_at_one(
    start_server: StartServer, patched: StartPatched, unpatched_server: Path, toys: ToyBox, top_k: int
) -> None:
    toy = toys.mtp(tied_ranks=3, draft_rank=2)
    stock = start_server(unpatched_server, toy, *FLAGS, *toy.draft_flags()).client.completion(PROMPT, 60, top_k=top_k)
    client = patched(toy).client
    assert client.completion(PROMPT, 60, top_k=top_k, **top_n(1)).tokens == stock.tokens
    assert client.completion(PROMPT, 60, top_k=top_k, **top_n(3)).accepted_n > stock.accepted_n


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("miss_rank", [2, 7])
def test_answers_and_counts_are_those_of_the_rule(
    patched: StartPatched, toys: ToyBox, kind: str, miss_rank: int
) -> None:
    toy = toys.of(kind, noise=0.4, miss_rank=miss_rank)
    client = patched(toy).client
    for limit in (0, 1, 2, 5, 6, 7, 1000):
        expected = expect(toy.language, ord("A"), N_PREDICT, N_MAX, limit, replays=kind == "replay")
        assert (expected.relaxed_n > 0) == (limit >= miss_rank)
        expected.assert_is(client.completion(PROMPT, N_PREDICT, **top_n(limit)))


@pytest.mark.parametrize("rank, refusing, accepting", [(2, 1, 2), (7, 5, 7)])
def test_a_draft_of_a_rank_is_accepted_from_that_rank_on(
    patched: StartPatched, toys: ToyBox, rank: int, refusing: int, accepting: int
) -> None:
    toy = toys.mtp(draft_rank=rank)
    refused = patched(toy, "--spec-draft-relaxed-top-n", str(refusing)).client.completion(PROMPT, N_PREDICT)
    assert list(refused.tokens) == toy.language.greedy(ord("A"), N_PREDICT)
    assert (refused.accepted_n, refused.relaxed_n) == (0, 0)
    accepted = patched(toy, "--spec-draft-relaxed-top-n", str(accepting)).client.completion(PROMPT, N_PREDICT)
    assert accepted.draft_n == accepted.accepted_n == accepted.relaxed_n > 0


def test_more_than_the_vocabulary_accepts_every_draft(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.mtp(noise=0.5, miss_rank=SIZE - len(CONTROL))
    server = patched(toy, "--spec-draft-relaxed-top-n", "100000")
    answer = server.client.completion(PROMPT, 1000)
    expect(toy.language, ord("A"), 1000, N_MAX, 100000).assert_is(answer)
    assert answer.draft_n == answer.accepted_n > answer.relaxed_n > 0


@pytest.mark.parametrize("rank, ratio", [(2, math.exp(-0.5)), (3, math.exp(-1.0))])
def test_a_draft_less_probable_than_the_ratio_is_refused(
    patched: StartPatched, toys: ToyBox, rank: int, ratio: float
) -> None:
    toy = toys.mtp(gap=0.5, draft_rank=rank)
    client = patched(toy, "--spec-draft-relaxed-top-n", "1000").client
    below = client.completion(PROMPT, N_PREDICT, **{"speculative.relaxed_min_ratio": ratio - 0.01})
    assert below.relaxed_n == below.draft_n > 0
    above = client.completion(PROMPT, N_PREDICT, **{"speculative.relaxed_min_ratio": ratio + 0.01})
    assert (above.relaxed_n, list(above.tokens)) == (0, toy.language.greedy(ord("A"), N_PREDICT))


@pytest.mark.parametrize("token", [END_OF_TEXT, IM_END, TOOL])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafted_control_token_is_never_relaxed(
    patched: StartPatched, toys: ToyBox, token: int, temperature: float
) -> None:
    # After every token the target ranks the control token second, and the drafter drafts nothing else.
    choices = dict(enumerate(PLAIN.ranking[:, 0].tolist()))
    toy = toys.mtp(
        follow={last: (choice, token) for last, choice in choices.items()}, drafts=dict.fromkeys(choices, token)
    )
    client = patched(toy).client
    answers = [client.completion(PROMPT, N_PREDICT, temperature=temperature, seed=s, **top_n(1000)) for s in range(5)]
    assert sum(answer.draft_n for answer in answers) > 0
    assert sum(answer.relaxed_n for answer in answers) == 0
    if not temperature:
        assert list(answers[0].tokens) == toy.language.greedy(ord("A"), N_PREDICT)


@pytest.mark.parametrize("kind", ["mtp", "replay"])
@pytest.mark.parametrize("token", [END_OF_TEXT, IM_END])
def test_the_end_is_never_relaxed_away(patched: StartPatched, toys: ToyBox, kind: str, token: int) -> None:
    toy = toys.of(kind, follow={BEFORE: (token,)}, drafts={BEFORE: CHOICE})
    answer = patched(toy).client.completion(PROMPT, N_PREDICT, **top_n(1000))
    assert toy.language.rank(BEFORE, CHOICE) == 2
    assert answer.tokens[-2:] == (BEFORE, token)
    assert answer.raw["stop_type"] == "eos"
    assert answer.relaxed_n == 0
    assert answer.accepted_n < answer.draft_n


def test_a_control_token_is_never_relaxed_away(patched: StartPatched, toys: ToyBox) -> None:
    toy = toys.mtp(follow={BEFORE: (TOOL,)}, drafts={BEFORE: CHOICE})
    answer = patched(toy).client.completion(PROMPT, N_PREDICT, **top_n(1000))
    assert answer.tokens[answer.tokens.index(BEFORE) + 1] == TOOL
    assert answer.accepted_n < answer.draft_n


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_banned_token_is_never_relaxed(patched: StartPatched, toys: ToyBox, temperature: float) -> None:
    toy = toys.mtp(draft_rank=2)
    client = patched(toy).client
    fields = top_n(1000, temperature=temperature, seed=3)
    free = client.completion(PROMPT, N_PREDICT, **fields)
    banned = max(free.tokens, key=free.tokens.count)
    assert free.tokens.count(banned) > 1
    answer = client.completion(PROMPT, N_PREDICT, **fields, logit_bias=[[banned, False]])
    assert any(toy.language.drafted[last] == banned for last in answer.tokens)
    assert banned not in answer.tokens
    assert answer.relaxed_n > 0


@pytest.mark.parametrize("sampling", ["greedy", "probabilistic"])
@pytest.mark.parametrize(
    "support, relaxes",
    [
        ({"top_k": 2}, True),
        ({"top_k": 1}, False),
        ({"top_k": 0, "min_p": 0.5}, True),
        ({"top_k": 0, "min_p": 0.7}, False),
        ({"top_k": 0, "top_p": 0.3}, False),
    ],
)
def test_a_draft_outside_the_support_of_the_sampler_is_refused(
    patched: StartPatched, toys: ToyBox, sampling: str, support: dict[str, float], relaxes: bool
) -> None:
    # Rank 2 is exp(-0.5) = 0.61 times as probable as rank 1, which itself has a probability of 0.39.
    client = patched(toys.mtp(gap=0.5, draft_rank=2), "--spec-draft-sampling", sampling).client
    wide = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **support}
    answer = client.completion(PROMPT, N_PREDICT, temperature=1.0, seed=5, **top_n(1000), **wide)
    assert answer.draft_n > 0
    assert (answer.relaxed_n > 0) == relaxes


@pytest.mark.parametrize("mirostat", [1, 2])
def test_mirostat_keeps_its_own_choice(patched: StartPatched, toys: ToyBox, mirostat: int) -> None:
    client = patched(toys.mtp(draft_rank=2)).client
    fields = {"temperature": 0.8, "seed": 2, "mirostat": mirostat}
    assert client.completion(PROMPT, N_PREDICT, **fields, **top_n(1000)).tokens == (
        client.completion(PROMPT, N_PREDICT, **fields).tokens
    )
