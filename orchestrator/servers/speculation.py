"""How speculation fares, from two looks at the servers: pure."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from orchestrator.schemas import ModelSpeculation, SlotSpeculation, SpeculationList
from orchestrator.schemas.speculation import acceptance_ratio, mean_acceptance_length
from orchestrator.telemetry import Look
from orchestrator.telemetry.exposition import parts
from orchestrator.telemetry.ledger import Account
from orchestrator.telemetry.look import Values

_NAMES = ("predicted_tokens", "predicted_seconds", "draft_tokens", "accepted_tokens", "relaxed_tokens")
_FIELDS = {f"llamacpp:slot_{name}_total": name for name in (*_NAMES, "verification_steps")}
_BUSY = "llamacpp:slot_busy"
Sums = dict[str, float]


def speculation(models: Iterable[str], newest: Look, before: Look | None) -> SpeculationList:
    """Sums of `newest`, and figures over the time since `before`."""
    seconds = None if before is None else newest.at - before.at
    return SpeculationList(
        window_seconds=seconds, models=tuple(_model(model, newest, before or newest, seconds) for model in models)
    )


def _model(model: str, newest: Look, before: Look, seconds: float | None) -> ModelSpeculation:
    account = newest.current.get(model)
    if account is None:
        return ModelSpeculation(model=model, slots=(), **_figures({}, {}, seconds))
    now, then, busy = _by_slot(newest, account), _by_slot(before, account), _busy(newest.gauges.get(account, {}))
    slots = tuple(
        SlotSpeculation(slot=slot, busy=busy.get(slot), **_figures(now[slot], then.get(slot, {}), seconds))
        # One that its server does not have any more is left out while there is one to tell.
        for slot in sorted(now.keys() & busy.keys() if busy else now)
    )
    figures = _figures(_added(now), _added(then), seconds)
    return ModelSpeculation(model=model, spec_type=account.spec_type, slots=slots, **figures)


def _figures(now: Sums, then: Sums, seconds: float | None) -> dict[str, Any]:
    """Fields of SpeculationFigures."""
    # A model that was taken away and came back has begun anew.
    grown = {name: max(0.0, now.get(name, 0.0) - then.get(name, 0.0)) for name in _FIELDS.values()}
    drafted, accepted, steps = grown["draft_tokens"], grown["accepted_tokens"], grown["verification_steps"]
    return {
        **{name: now.get(name, 0) for name in _FIELDS.values()},
        "tokens_per_second": grown["predicted_tokens"] / seconds if seconds else None,
        "acceptance_ratio": acceptance_ratio(accepted, drafted),
        "mean_acceptance_length": mean_acceptance_length(accepted, steps),
    }


def _by_slot(look: Look, account: Account) -> dict[int, Sums]:
    slots: dict[int, Sums] = defaultdict(dict)
    for series, value in look.counters.get(account, {}).items():
        name, labels = parts(series)
        slot = labels.get("slot", "")
        if name in _FIELDS and slot.isdecimal():
            slots[int(slot)][_FIELDS[name]] = value
    return dict(slots)


def _busy(gauges: Values) -> dict[int, bool]:
    found = ((*parts(series), value) for series, value in gauges.items())
    busy = {labels.get("slot", ""): value > 0 for name, labels, value in found if name == _BUSY}
    return {int(slot): is_busy for slot, is_busy in busy.items() if slot.isdecimal()}


def _added(slots: dict[int, Sums]) -> Sums:
    return {name: sum(sums.get(name, 0.0) for sums in slots.values()) for name in _FIELDS.values()}
