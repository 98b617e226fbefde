"""How speculation fares, per model and slot."""

from pydantic import Field

from orchestrator.schemas.base import View


def acceptance_ratio(accepted_tokens: float, draft_tokens: float) -> float | None:
    """Accepted over drafted; None without drafts: that is no data, not 0 %."""
    return accepted_tokens / draft_tokens if draft_tokens else None


def mean_acceptance_length(accepted_tokens: float, verification_steps: float) -> float | None:
    """Tokens that a verification step yields, the target's own among them; None without drafts."""
    return 1 + accepted_tokens / verification_steps if verification_steps else None


class SpeculationFigures(View):
    """Sums since the model first ran, which go on over restarts of its server, and figures of the last seconds.

    Figures are null where there is nothing to count from: no drafts is no data, not 0 %.
    """

    predicted_tokens: int = Field(description="Tokens generated.", examples=[1820])
    predicted_seconds: float = Field(description="Time spent generating, seconds.", examples=[23.75])
    draft_tokens: int = Field(description="Tokens drafted.", examples=[1200])
    accepted_tokens: int = Field(description="Drafted tokens that were accepted.", examples=[790])
    relaxed_tokens: int = Field(0, description="Accepted tokens that were not the target's own choice.", examples=[12])
    verification_steps: int = Field(description="Steps in which the target verified a draft.", examples=[420])
    tokens_per_second: float | None = Field(
        None,
        description="Tokens generated a second in the window, idle time counted; null without a window.",
        examples=[76.5],
    )
    acceptance_ratio: float | None = Field(
        None, description="Accepted over drafted tokens in the window, 0 to 1; null without drafts.", examples=[0.66]
    )
    mean_acceptance_length: float | None = Field(
        None,
        description="Tokens that a verification step yielded in the window: 1 + accepted over steps; null without "
        "drafts.",
        examples=[2.88],
    )


class SlotSpeculation(SpeculationFigures):
    """One slot."""

    slot: int = Field(description="Number of the slot, from 0.", examples=[0])
    busy: bool | None = Field(
        None, description="Whether a request runs on it; null while its server does not tell.", examples=[True]
    )


class ModelSpeculation(SpeculationFigures):
    """One model, with the sums over its slots."""

    model: str = Field(description="Name of the model.", examples=["smollm2-135m"])
    spec_type: str | None = Field(
        None,
        description="llama-server's --spec-type that it runs with, or ran last; null when it has not run yet.",
        examples=["ngram-simple"],
    )
    slots: tuple[SlotSpeculation, ...] = Field(
        description="By number; none when it has not run yet, or its llama-server is not the patched one."
    )


class SpeculationList(View):
    """Every model."""

    window_seconds: float | None = Field(
        description="What the figures go back to: about ten seconds, at most a minute; null when nobody has looked "
        "in the last minute.",
        examples=[10.1],
    )
    models: tuple[ModelSpeculation, ...] = Field(description="By name.")
