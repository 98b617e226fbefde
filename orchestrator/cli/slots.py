"""Speculation per slot since the orchestrator started."""

from collections.abc import Iterable
from typing import Any

from orchestrator.schemas import SlotSpeculation, SpeculationList
from orchestrator.schemas.speculation import acceptance_ratio, mean_acceptance_length


def running_slots(found: SpeculationList) -> dict[str, list[SlotSpeculation]]:
    """Slots by model, of servers that run."""
    return {model.model: [slot for slot in model.slots if slot.busy is not None] for model in found.models}


def tokens_per_second(slot: SlotSpeculation) -> float | None:
    """Generated tokens over the time spent generating; None before the first token."""
    return slot.predicted_tokens / slot.predicted_seconds if slot.predicted_tokens and slot.predicted_seconds else None


def slots_as_json(slots: Iterable[SlotSpeculation]) -> dict[str, Any]:
    """Counters of slots and what follows from them; null is "no data"."""
    return {"slots": [_as_json(slot) for slot in slots]}


def _as_json(slot: SlotSpeculation) -> dict[str, Any]:
    return {
        **slot.model_dump(mode="json"),
        "acceptance_ratio": acceptance_ratio(slot.accepted_tokens, slot.draft_tokens),
        "mean_acceptance_length": mean_acceptance_length(slot.accepted_tokens, slot.verification_steps),
        "tokens_per_second": tokens_per_second(slot),
    }
