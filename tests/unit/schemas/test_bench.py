"""Figures of a comparison, and what cannot be one."""

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.schemas import BenchFigures, BenchPut, BenchRound, BenchSums

LAUNCH = "0123456789abcdef"
PLAIN = BenchSums(answers=2, predicted_tokens=102, predicted_seconds=1.0)


def drafted(seconds: float, steps: int = 20, accepted: int = 50, undrafted: int = 30, answers: int = 2) -> BenchSums:
    """Of answers whose tokens came of `steps` verifications and `undrafted` plain steps."""
    return BenchSums(
        answers=answers,
        predicted_tokens=answers + steps + accepted + undrafted,
        predicted_seconds=seconds,
        draft_tokens=4 * steps,
        accepted_tokens=accepted,
        verification_steps=steps,
    )


def figures(*halves: BenchSums) -> BenchFigures:
    return BenchFigures.of([BenchRound(plain=PLAIN, drafted=half) for half in halves])


def test_medians_and_range_are_those_of_the_rounds() -> None:
    # 100 tokens took decoding in either half, so a ratio is 1 s by the time of the drafted half.
    found = figures(drafted(0.5), drafted(2.0), drafted(0.8))
    assert (found.rounds, found.plain_tokens_per_second, found.drafted_tokens_per_second) == (3, 100.0, 125.0)
    assert (found.speedup_ratio, found.speedup_ratio_min, found.speedup_ratio_max) == (1.25, 0.5, 2.0)
    assert (found.acceptance_ratio, found.mean_acceptance_length) == (50 / 80, 3.5)


@pytest.mark.parametrize("cost", [1.0, 1.7, 3.5, 6.0])
def test_break_even_is_what_a_verification_step_costs_in_plain_steps(cost: float) -> None:
    token_seconds, steps, undrafted = 0.01, 20, 30
    found = figures(drafted(steps * cost * token_seconds + undrafted * token_seconds))
    assert found.break_even_tokens == pytest.approx(cost)
    assert found.mean_acceptance_length == 3.5
    plain_steps = steps + 50 + undrafted
    assert found.speedup_ratio == pytest.approx(plain_steps / (steps * cost + undrafted))


def test_a_machine_that_slows_down_between_rounds_changes_no_ratio_and_no_break_even() -> None:
    quick = BenchRound(plain=PLAIN, drafted=drafted(0.64))
    slow = BenchRound(
        plain=PLAIN.model_copy(update={"predicted_seconds": 10.0}),
        drafted=quick.drafted.model_copy(update={"predicted_seconds": 6.4}),
    )
    one, both = BenchFigures.of([quick]), BenchFigures.of([quick, slow])
    assert both.break_even_tokens == pytest.approx(one.break_even_tokens) == pytest.approx(1.7)
    assert both.speedup_ratio_max == pytest.approx(both.speedup_ratio_min)


def test_an_answer_that_ends_among_accepted_tokens_has_no_step_less() -> None:
    # 60 tokens were accepted, and of the last step's the answer had no use: 20 + 60 are more than its 75.
    half = BenchSums(
        answers=1,
        predicted_tokens=76,
        predicted_seconds=0.6,
        draft_tokens=80,
        accepted_tokens=60,
        verification_steps=20,
    )
    assert figures(half).break_even_tokens == pytest.approx(0.6 / 20 / 0.01)


def test_without_drafts_there_is_no_acceptance_and_no_break_even() -> None:
    found = figures(drafted(1.0, steps=0, accepted=0, undrafted=100))
    assert (found.acceptance_ratio, found.mean_acceptance_length, found.break_even_tokens) == (None, None, None)
    assert found.speedup_ratio == 1.0


def test_too_few_steps_tell_no_break_even() -> None:
    assert figures(drafted(0.98, steps=1, accepted=1, undrafted=99)).break_even_tokens is None


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"accepted_tokens": 81}, "81 tokens were accepted of 80"),
        ({"verification_steps": 0}, "0 steps cannot have verified 80"),
        ({"verification_steps": 81}, "81 steps cannot have verified 80"),
        ({"draft_tokens": 0, "accepted_tokens": 0}, "20 steps cannot have verified 0"),
        ({"draft_tokens": 500, "verification_steps": 101}, "101 steps cannot have verified 500"),
        ({"answers": 102}, "102 tokens of 102 answers have no rate"),
        ({"predicted_seconds": 0.00001}, "tokens per second cannot be"),
        ({"predicted_seconds": 0.0}, "greater than 0"),
        ({"predicted_seconds": float("nan")}, "finite"),
        ({"predicted_tokens": 10**16}, "less than or equal"),
        ({"speed": 1.0}, "not permitted"),
    ],
)
def test_sums_that_cannot_be_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        BenchSums.model_validate(drafted(1.0).model_dump() | wrong)


def test_a_plain_half_with_drafts_is_refused() -> None:
    with pytest.raises(ValidationError, match="plain: 80 tokens were drafted; expected none"):
        BenchRound(plain=drafted(1.0), drafted=drafted(1.0))


@pytest.mark.parametrize("wrong", [{"launch": "../x"}, {"rounds": ()}, {"rounds": [1]}, {"at": 1.0}])
def test_a_measurement_says_what_was_measured(wrong: dict[str, Any]) -> None:
    body = BenchPut(launch=LAUNCH, rounds=(BenchRound(plain=PLAIN, drafted=drafted(1.0)),)).model_dump()
    BenchPut.model_validate(body)
    with pytest.raises(ValidationError):
        BenchPut.model_validate(body | wrong)
