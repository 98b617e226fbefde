"""Latency: how long clients wait, for the first token, for each further one, for their server, and in all."""

from dashboards.common import ALERTS, EVENTS, HOST_OF_MODEL, MODEL_ON_HOST, SPEC_TYPE
from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.promql import RANGE, mean, quantile
from dashboards.views import SECONDS, lines, stat

_TTFT = "slipstream_time_to_first_token_seconds"
_TPOT = "slipstream_time_per_output_token_seconds"
_ITL = "slipstream_inter_token_latency_seconds"
_REQUEST = "slipstream_request_seconds"
_WAIT = "slipstream_swap_wait_seconds"
_LOAD = "slipstream_swap_seconds"

TTFT_MEANS = "From the request's arrival to its first token, waits and prompt included."
TPOT_MEANS = "Time of a whole answer after its first token, divided by its further tokens: one value a request."
ITL_MEANS = (
    "Time between two arrivals of text in a stream: many values a request. Drafting makes arrivals that bring several "
    "tokens at once, so this may rise while the time per output token falls."
)
REQUEST_MEANS = "From the request's arrival to the end of its answer."
WAIT_MEANS = "How long a request waited for its server to be loaded; 0 counts, so most are 0."
LOAD_MEANS = "From the decision to load a model until it was ready; the drain of those who had to go is in it."


def _row(title: str, histogram: str, means: str, no_value: str = "no traffic") -> Row:
    return Row(
        title,
        (
            lines(
                title,
                f"{means} So long at most for 50, 90 and 99 of 100, and the mean. Quantiles are as exact as the "
                "histogram's buckets.",
                (
                    Query(quantile(0.5, histogram), "50 %"),
                    Query(quantile(0.9, histogram), "90 %", has_exemplars=True),
                    Query(quantile(0.99, histogram), "99 %"),
                    Query(mean(histogram), "mean"),
                ),
                SECONDS,
                no_value,
            ),
            lines(
                f"{title} by model",
                f"{means} The mean, and so long at most for 90 of 100, for each model.",
                (
                    Query(mean(histogram, "model"), "{{model}}: mean"),
                    Query(quantile(0.9, histogram, "model"), "{{model}}: 90 %"),
                ),
                SECONDS,
                no_value,
            ),
        ),
    )


def _figure(title: str, means: str, q: float, histogram: str) -> Panel:
    return stat(title, f"{means} Of the selected range.", quantile(q, histogram, window=RANGE), SECONDS)


LATENCY = Dashboard(
    "latency",
    "Slipstream: Latency",
    "How long clients wait, and for what.",
    (
        Row(
            "The selected range",
            (
                _figure("First token, half", TTFT_MEANS, 0.5, _TTFT),
                _figure("First token, 99 %", TTFT_MEANS, 0.99, _TTFT),
                _figure("Per token, half", TPOT_MEANS, 0.5, _TPOT),
                _figure("Per token, 99 %", TPOT_MEANS, 0.99, _TPOT),
                _figure("Between arrivals, 99 %", ITL_MEANS, 0.99, _ITL),
                _figure("Wait for a server, 99 %", WAIT_MEANS, 0.99, _WAIT),
            ),
        ),
        _row("Time to first token", _TTFT, TTFT_MEANS),
        _row("Time per output token", _TPOT, TPOT_MEANS),
        _row("Between arrivals", _ITL, ITL_MEANS),
        _row("Whole request", _REQUEST, REQUEST_MEANS),
        _row("Wait for a server", _WAIT, WAIT_MEANS),
        _row("Loads", _LOAD, LOAD_MEANS, "no load"),
    ),
    (HOST_OF_MODEL, SPEC_TYPE, MODEL_ON_HOST),
    (*EVENTS, ALERTS),
)
