"""Speculation per slot, read from the orchestrator's metrics."""

from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import Code, SlipstreamError

_PREFIX = "slipstream_slot_"


@dataclass
class Slot:
    """Counters of one slot since its server started; None where the server does not count."""

    slot: str
    busy: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    relaxed_tokens: float | None = None
    verification_steps: float | None = None
    predicted_tokens: float | None = None
    predicted_seconds: float | None = None

    @property
    def acceptance_ratio(self) -> float | None:
        """Accepted over drafted; None without drafts: that is no data, not 0 %."""
        return (
            self.accepted_tokens / self.draft_tokens if self.accepted_tokens is not None and self.draft_tokens else None
        )

    @property
    def mean_acceptance_length_tokens(self) -> float | None:
        """Tokens a verification step yields: 1 + accepted over steps; None without drafts."""
        if self.accepted_tokens is None or not self.verification_steps:
            return None
        return 1 + self.accepted_tokens / self.verification_steps

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens over the time spent generating; None before the first token."""
        return (
            self.predicted_tokens / self.predicted_seconds if self.predicted_tokens and self.predicted_seconds else None
        )

    def as_json(self) -> dict[str, Any]:
        """Counters and what follows from them; null is "no data"."""
        return {
            **vars(self),
            "acceptance_ratio": self.acceptance_ratio,
            "mean_acceptance_length_tokens": self.mean_acceptance_length_tokens,
            "tokens_per_second": self.tokens_per_second,
        }


def read_slots(page: str) -> dict[str, list[Slot]]:
    """Slots by model, in order of their numbers; SlipstreamError when `page` is no Prometheus text."""
    slots: dict[tuple[str, str], Slot] = {}
    try:
        for family in text_string_to_metric_families(page):
            field = family.name.removeprefix(_PREFIX)
            if field == family.name or field not in Slot.__dataclass_fields__:
                continue
            for sample in family.samples:
                key = (sample.labels["model"], sample.labels["slot"])
                setattr(slots.setdefault(key, Slot(key[1])), field, sample.value)
    except (ValueError, KeyError) as e:
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"the orchestrator's metrics are not readable: {e!r}") from e
    by_model: dict[str, list[Slot]] = {}
    for (model, _), slot in sorted(slots.items(), key=lambda item: (item[0][0], len(item[0][1]), item[0][1])):
        by_model.setdefault(model, []).append(slot)
    return by_model
