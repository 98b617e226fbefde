"""Figures of many outcomes, from the `timings` of their answers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.cli.traffic.requests import CUT_OFF, Outcome
from orchestrator.schemas.speculation import acceptance_ratio, mean_acceptance_length

_DIGITS = 4


def summarize(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """All figures: `{"seconds", "total", "models": {name: figures}, "kinds": {kind: figures}, "errors": [...]}`."""
    models = sorted({outcome.request.model for outcome in outcomes})
    kinds = sorted({outcome.request.kind for outcome in outcomes})
    return {
        "seconds": round(seconds, _DIGITS),
        "total": figures(outcomes, seconds),
        "models": {name: figures([o for o in outcomes if o.request.model == name], seconds) for name in models},
        "kinds": {name: figures([o for o in outcomes if o.request.kind == name], seconds) for name in kinds},
        "errors": _errors(outcomes),
    }


def figures(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Of a set of outcomes in so many seconds; null is "no data".

    `tokens_per_second` are all tokens by all the time, `tokens_per_second_of_an_answer` what one answer got while it
    was generated: tokens by generation time, over all answers.
    """
    timings = [outcome.timings for outcome in outcomes if outcome.reason is None]

    def total(name: str) -> float:
        return sum(t.get(name) or 0 for t in timings)

    tokens, drafted, accepted = int(total("predicted_n")), int(total("draft_n")), int(total("draft_n_accepted"))
    steps, generating_seconds = int(total("draft_n_steps")), total("predicted_ms") / 1000
    first = sorted(o.first_token_seconds for o in outcomes if o.reason is None and o.first_token_seconds is not None)
    return {
        "requests": len(outcomes),
        "failed": sum(outcome.has_failed for outcome in outcomes),
        "cut_off": sum(outcome.reason == CUT_OFF for outcome in outcomes),
        "tokens": tokens,
        "tokens_per_second": _ratio(tokens, seconds),
        "tokens_per_second_of_an_answer": _ratio(tokens, generating_seconds),
        "first_token_seconds": {"p50": _quantile(first, 0.5), "p99": _quantile(first, 0.99)},
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "relaxed_tokens": int(total("draft_n_relaxed")),
        "verification_steps": steps,
        "acceptance_ratio": _rounded(acceptance_ratio(accepted, drafted)),
        "mean_acceptance_length_tokens": _rounded(mean_acceptance_length(accepted, steps)),
    }


def _errors(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """By model and reason, the most frequent first, each with a message of the last one."""
    failed = [outcome for outcome in outcomes if outcome.has_failed]
    counts = Counter((outcome.request.model, outcome.reason) for outcome in failed)
    messages = {(outcome.request.model, outcome.reason): outcome.message for outcome in failed}
    return [
        {"model": model, "reason": reason, "count": count, "message": messages[model, reason]}
        for (model, reason), count in counts.most_common()
    ]


def _ratio(part: float, whole: float) -> float | None:
    return _rounded(part / whole if whole else None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """The least value that `share` of them do not exceed."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], _DIGITS)
