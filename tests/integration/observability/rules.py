"""What every rule is to say about the known traffic, told from the answers alone."""

from operator import attrgetter

from tests.integration.observability.figures import WINDOW_OF_RULES_SECONDS as WINDOW
from tests.integration.observability.figures import (
    Expect,
    Figures,
    by_model,
    by_model_and_position,
    by_slot,
    by_slot_and_position,
    labelled,
    nothing,
    per_second,
)
from tests.integration.observability.known import CATALOGUE

_RATES = (
    *("predicted_tokens", "predicted_seconds", "draft_tokens", "accepted_tokens", "relaxed_tokens"),
    "verification_steps",
)
_RATIOS = {
    "acceptance:ratio_rate5m": "acceptance",
    "acceptance_length_tokens:mean5m": "acceptance_length",
    "generation_tokens_per_second:ratio_rate5m": "generation_tokens_per_second",
    "drafted_share:ratio_rate5m": "drafted_share",
    "relaxed_share:ratio_rate5m": "relaxed_share",
}

RECORDED: dict[str, Expect] = {
    **{f"model_slot:slipstream_{name}:rate5m": by_slot(per_second(name)) for name in _RATES},
    **{f"model:slipstream_{name}:rate5m": by_model(per_second(name)) for name in _RATES},
    **{f"model_slot:slipstream_{rule}": by_slot(attrgetter(name)) for rule, name in _RATIOS.items()},
    **{f"model:slipstream_{rule}": by_model(attrgetter(name)) for rule, name in _RATIOS.items()},
    "model_slot_position:slipstream_accepted_tokens:rate5m": by_slot_and_position(
        lambda figures, position: figures.accepted_at(position) / WINDOW
    ),
    "model_position:slipstream_accepted_tokens:rate5m": by_model_and_position(
        lambda figures, position: figures.accepted_at(position) / WINDOW
    ),
    "model_slot_position:slipstream_acceptance:ratio_rate5m": by_slot_and_position(Figures.acceptance_at),
    "model_position:slipstream_acceptance:ratio_rate5m": by_model_and_position(Figures.acceptance_at),
    "model:slipstream_waiting_requests:sum": lambda _: {labelled(model=model): 0.0 for model in CATALOGUE},
}

# Nothing is wrong with the known traffic, so no alert may have anything to say about it.
ALERT: Expect = nothing
