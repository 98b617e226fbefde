"""What collectors show, as series and values."""

from collections.abc import Iterable

from prometheus_client import Metric

from orchestrator.telemetry import Look
from orchestrator.telemetry.exposition import read_exposition
from orchestrator.telemetry.ledger import Account

Series = tuple[str, frozenset[tuple[str, str]]]


def values(families: Iterable[Metric]) -> dict[Series, float]:
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def series(name: str, **labels: str) -> Series:
    return name, frozenset(labels.items())


def look(**pages: str) -> Look:
    """A look at servers that speculate by MTP and have just begun, by model: what each says."""
    read = {Account(model, "draft-mtp"): read_exposition(page.encode()) for model, page in pages.items()}
    return Look(
        counters={account: exposition.counters for account, exposition in read.items()},
        gauges={account: exposition.gauges for account, exposition in read.items()},
        current={account.model: account for account in read},
        families={name: family for exposition in read.values() for name, family in exposition.families.items()},
    )


PATCHED = """# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 386
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:slot_predicted_tokens_total counter
llamacpp:slot_predicted_tokens_total{slot="0"} 370
llamacpp:slot_predicted_tokens_total{slot="1"} 16
# TYPE llamacpp:slot_predicted_seconds_total counter
llamacpp:slot_predicted_seconds_total{slot="0"} 0.153654
# TYPE llamacpp:slot_draft_tokens_total counter
llamacpp:slot_draft_tokens_total{slot="0"} 653
# TYPE llamacpp:slot_accepted_tokens_total counter
llamacpp:slot_accepted_tokens_total{slot="0"} 149
# TYPE llamacpp:slot_relaxed_tokens_total counter
llamacpp:slot_relaxed_tokens_total{slot="0"} 3
# TYPE llamacpp:slot_verification_steps_total counter
llamacpp:slot_verification_steps_total{slot="0"} 217
# HELP llamacpp:slot_busy 1 if the slot is processing a request, else 0
# TYPE llamacpp:slot_busy gauge
llamacpp:slot_busy{slot="0"} 1
llamacpp:slot_busy{slot="1"} 0
# TYPE llamacpp:slot_accepted_tokens_per_position_total counter
llamacpp:slot_accepted_tokens_per_position_total{slot="0",position="0"} 100
llamacpp:slot_accepted_tokens_per_position_total{slot="0",position="1"} 49
"""
# What a server without patches says (server-task.cpp): its maximum is called a counter.
STOCK = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1.23457e+06
# HELP llamacpp:n_tokens_max Largest observed n_tokens.
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 137
# HELP llamacpp:spec_decode_num_accepted_tokens_per_pos_total Number of accepted tokens per position.
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 12
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s.
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 41.5
"""
