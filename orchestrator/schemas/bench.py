"""What drafting was measured to bring: sums as they are sent, and the figures that follow from them."""

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from orchestrator.schemas.base import Strict, View
from orchestrator.schemas.speculation import acceptance_ratio, mean_acceptance_length

# Far above any hardware: whoever sends more has sent milliseconds.
_GREATEST_TOKENS_PER_SECOND = 1e6
_COUNT_BOUND = 10**15
_Count = Annotated[int, Field(ge=0, le=_COUNT_BOUND)]
LaunchKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class BenchSums(Strict):
    """Sums over the `timings` of some answers. The first token of an answer costs no decoding, so it has no part in a
    rate; an accepted token and one token more come of a verification step."""

    answers: int = Field(ge=1, le=_COUNT_BOUND, description="How many answers.", examples=[7])
    predicted_tokens: int = Field(ge=1, le=_COUNT_BOUND, description="Generated tokens.", examples=[1120])
    predicted_seconds: float = Field(
        gt=0, le=1e9, allow_inf_nan=False, description="Time spent generating them, seconds.", examples=[6.4]
    )
    draft_tokens: _Count = Field(0, description="Drafted tokens.", examples=[900])
    accepted_tokens: _Count = Field(0, description="Drafted tokens that were accepted.", examples=[610])
    verification_steps: _Count = Field(0, description="Steps in which a draft was verified.", examples=[300])

    @property
    def decoded_tokens(self) -> int:
        """Tokens that took decoding."""
        return self.predicted_tokens - self.answers

    @property
    def tokens_per_second(self) -> float:
        """As llama-server has it in `predicted_per_second`."""
        return self.decoded_tokens / self.predicted_seconds

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.decoded_tokens < 1:
            raise ValueError(
                f"{self.predicted_tokens} tokens of {self.answers} answers have no rate; expected more than one each"
            )
        if self.tokens_per_second > _GREATEST_TOKENS_PER_SECOND:
            raise ValueError(f"{self.tokens_per_second:,.0f} tokens per second cannot be; are these seconds?")
        if self.accepted_tokens > self.draft_tokens:
            raise ValueError(f"{self.accepted_tokens} tokens were accepted of {self.draft_tokens} drafted ones")
        # A step verifies a draft that is not empty, and ends with a token of the target's own.
        if not (self.draft_tokens > 0) <= self.verification_steps <= min(self.draft_tokens, self.decoded_tokens):
            raise ValueError(
                f"{self.verification_steps} steps cannot have verified {self.draft_tokens} drafted tokens in an "
                f"answer of {self.decoded_tokens}"
            )
        return self


class BenchRound(Strict):
    """The same prompts twice: without drafts, and with drafts as configured."""

    plain: BenchSums = Field(description="With `speculative.n_max: 0`.")
    drafted: BenchSums = Field(description="As the server drafts.")

    @property
    def speedup_ratio(self) -> float:
        """Rate with drafts by that without."""
        return self.drafted.tokens_per_second / self.plain.tokens_per_second

    @model_validator(mode="after")
    def _is_plain(self) -> Self:
        if self.plain.draft_tokens:
            raise ValueError(f"plain: {self.plain.draft_tokens} tokens were drafted; expected none")
        return self


class BenchPut(Strict):
    """A measurement of drafting, kept for the model until another one replaces it."""

    launch: LaunchKey = Field(
        description="`launch` of `GET` before the measurement: what was measured.", examples=["5d41402abc4b2a76"]
    )
    rounds: tuple[BenchRound, ...] = Field(min_length=1, max_length=500, description="One after the other.")


class BenchFigures(View):
    """What rounds say. Null is "no data": nothing was drafted."""

    rounds: int = Field(description="How many rounds.", examples=[5])
    plain_tokens_per_second: float = Field(description="Without drafts: median of the rounds.", examples=[174.0])
    drafted_tokens_per_second: float = Field(description="With drafts: median of the rounds.", examples=[228.0])
    speedup_ratio: float = Field(description="Median of what the rounds have, each by itself.", examples=[1.31])
    speedup_ratio_min: float = Field(description="Of the round with the least.", examples=[1.25])
    speedup_ratio_max: float = Field(description="Of the round with the greatest.", examples=[1.38])
    acceptance_ratio: float | None = Field(None, description="Accepted by drafted tokens.", examples=[0.68])
    mean_acceptance_length: float | None = Field(
        None, description="Tokens a verification step gave, the target's own among them.", examples=[3.03]
    )
    break_even_tokens: float | None = Field(
        None,
        description="Mean acceptance length at which drafting neither costs nor brings: what a verification step took "
        "by what a token takes without drafts. Null also where steps were too few to tell.",
        examples=[2.31],
    )

    @classmethod
    def of(cls, rounds: Sequence[BenchRound]) -> Self:
        """The figures of at least one round."""
        ratios = [one.speedup_ratio for one in rounds]
        drafted = [one.drafted for one in rounds]
        proposed, accepted = sum(d.draft_tokens for d in drafted), sum(d.accepted_tokens for d in drafted)
        steps = sum(d.verification_steps for d in drafted)
        return cls(
            rounds=len(rounds),
            plain_tokens_per_second=median(one.plain.tokens_per_second for one in rounds),
            drafted_tokens_per_second=median(d.tokens_per_second for d in drafted),
            speedup_ratio=median(ratios),
            speedup_ratio_min=min(ratios),
            speedup_ratio_max=max(ratios),
            acceptance_ratio=acceptance_ratio(accepted, proposed),
            mean_acceptance_length=mean_acceptance_length(accepted, steps),
            break_even_tokens=_break_even_tokens(rounds),
        )


class BenchResult(BenchFigures):
    """The measurement that is kept for a model."""

    at: float = Field(description="When it was kept, Unix seconds.", examples=[1790000000.25])
    launch: LaunchKey = Field(description="What was measured.", examples=["5d41402abc4b2a76"])
    spec_type: str = Field(description="How drafts were made.", examples=["draft-mtp"])
    is_stale: bool = Field(
        description="Whether the server runs otherwise now, or would. It is then in no metric.", examples=[False]
    )


class BenchView(View):
    """The measurement that is kept for a model, if there is one."""

    model: str = Field(description="Name of the model.", examples=["smollm2-135m"])
    launch: LaunchKey | None = Field(
        None,
        description="A name for how its server runs now: files, flags, place. Null while it does not run.",
        examples=["5d41402abc4b2a76"],
    )
    result: BenchResult | None = Field(None, description="What is kept.")


def _break_even_tokens(rounds: Sequence[BenchRound]) -> float | None:
    """Times count in plain tokens of their own round: a machine that slows down between rounds changes nothing."""
    steps, spent = 0, 0.0
    for one in rounds:
        half = one.drafted
        # Less than nothing where an answer ended among accepted tokens: those are counted, and not in the answer.
        undrafted = max(0, half.decoded_tokens - half.accepted_tokens - half.verification_steps)
        spent += half.predicted_seconds * one.plain.tokens_per_second - undrafted
        steps += half.verification_steps
    return spent / steps if steps and spent > 0 else None
