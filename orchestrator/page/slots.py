"""Figures of slots as they are written."""

from dataclasses import dataclass

from orchestrator.schemas import ModelSpeculation, SpeculationFigures
from orchestrator.schemas.speculation import acceptance_ratio

NO_DRAFTS, NO_TRAFFIC = "no drafts", "no traffic"


@dataclass(frozen=True)
class Slot:
    """One slot, or all of them: how it goes lately, and in all.

    Nothing drafted is not 0 %: `acceptance` is then None, without a token lately `rate` is too, and `silence` says
    which of the two. `all_acceptance` is blank where nothing was ever drafted.
    """

    name: str
    is_busy: bool | None
    rate: str | None
    acceptance: str | None
    share: str
    length: str
    generated: str
    drafted: str
    all_acceptance: str

    @property
    def silence(self) -> str:
        """Why there is no figure."""
        return NO_TRAFFIC if self.rate is None else NO_DRAFTS


def slots_of(model: ModelSpeculation) -> tuple[Slot, ...]:
    """Every slot of a model, and where there are several all of them together."""
    slots = tuple(_written(str(slot.slot), slot, slot.busy) for slot in model.slots)
    return (*slots, _written("all", model)) if len(slots) > 1 else slots


def percent(ratio: float) -> str:
    """`93.8 %`."""
    return f"{ratio * 100:.1f} %"


def count(number: int) -> str:
    """`12,345`, and from a million on `1.23 M`: a column of figures stays narrow."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"


def _written(name: str, figures: SpeculationFigures, is_busy: bool | None = None) -> Slot:
    rate, ratio, length = figures.tokens_per_second, figures.acceptance_ratio, figures.mean_acceptance_length
    in_all = acceptance_ratio(figures.accepted_tokens, figures.draft_tokens)
    is_silent = not rate
    return Slot(
        name=name,
        is_busy=is_busy,
        rate=None if is_silent else f"{rate:,.1f}",
        acceptance=None if is_silent or ratio is None else percent(ratio),
        share=f"{100 * (ratio or 0.0):.1f}",
        length="" if length is None else f"{length:.2f}",
        generated=count(figures.predicted_tokens),
        drafted=count(figures.draft_tokens) if figures.draft_tokens else "",
        all_acceptance="" if in_all is None else percent(in_all),
    )
