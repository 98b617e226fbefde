"""Speculation per slot, from the per-slot series of the patched server (patches 0002 and 0004)."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from orchestrator.telemetry.exposition import parts, written
from orchestrator.telemetry.family import WrittenFamily
from orchestrator.telemetry.ledger import Account
from orchestrator.telemetry.look import Look, Values

SLOT_PREFIX = "llamacpp:slot_"
POSITIONS = "llamacpp:slot_accepted_tokens_per_position_total"


class _Name(NamedTuple):
    """A family of ours: vLLM's schema, with the slot as one more label."""

    ours: str
    kind: str
    text: str
    labels: tuple[str, ...] = ("slot",)


_NAMES = {
    "llamacpp:slot_predicted_tokens_total": _Name("slipstream_slot_predicted_tokens", "counter", "Tokens generated."),
    "llamacpp:slot_predicted_seconds_total": _Name(
        "slipstream_slot_predicted_seconds", "counter", "Time spent generating, seconds."
    ),
    "llamacpp:slot_draft_tokens_total": _Name("slipstream_slot_draft_tokens", "counter", "Tokens drafted."),
    "llamacpp:slot_accepted_tokens_total": _Name(
        "slipstream_slot_accepted_tokens", "counter", "Drafted tokens that were accepted."
    ),
    "llamacpp:slot_relaxed_tokens_total": _Name(
        "slipstream_slot_relaxed_tokens", "counter", "Accepted tokens that were not the target's own choice."
    ),
    "llamacpp:slot_verification_steps_total": _Name(
        "slipstream_slot_verification_steps", "counter", "Steps in which the target verified a draft."
    ),
    POSITIONS: _Name(
        "slipstream_slot_accepted_tokens_per_position",
        "counter",
        "Accepted tokens by position in the draft, from 0.",
        ("slot", "position"),
    ),
    "llamacpp:slot_busy": _Name("slipstream_slot_busy", "gauge", "Whether the slot is at work."),
}


class SlotCollector(Collector):
    """Counters per slot, which stay as they are while the server is down; `busy` only where there is a server.

    ```
    slipstream_slot_draft_tokens_total{model="smollm2-135m",slot="0",spec_type="ngram-simple"} 412.0
    slipstream_slot_accepted_tokens_total{model="smollm2-135m",slot="0",spec_type="ngram-simple"} 398.0
    slipstream_slot_accepted_tokens_per_position_total{model="…",position="0",slot="0",spec_type="…"} 61.0
    slipstream_slot_busy{model="smollm2-135m",slot="0",spec_type="ngram-simple"} 1.0
    ```
    """

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """One family a series name of the server, over all servers."""
        families = {upstream: WrittenFamily(name.ours, name.text, name.kind) for upstream, name in _NAMES.items()}
        for kind, found in (("counter", self._look.counters), ("gauge", self._look.gauges)):
            for account, values in found.items():
                _fill(families, kind, account, values)
        yield from families.values()


def _fill(families: Mapping[str, WrittenFamily], kind: str, account: Account, values: Values) -> None:
    rows = {upstream: family.rows for upstream, family in families.items() if family.type == kind}
    for series, value in values.items():
        upstream, ours = _ours(series, account.model, account.spec_type)
        if upstream in rows:
            rows[upstream].append((ours, value))


@lru_cache(1 << 16)
def _ours(series: str, model: str, spec_type: str) -> tuple[str, str]:
    """Name of a series at the server, and the series as it stands on our page."""
    upstream, labels = parts(series)
    name = _NAMES.get(upstream)
    if name is None:
        return "", ""
    own = {label: labels.get(label, "") for label in name.labels}
    suffix = "_total" if name.kind == "counter" else ""
    return upstream, written(name.ours + suffix, own | {"model": model, "spec_type": spec_type})
