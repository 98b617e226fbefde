"""Overview: models, their state, swaps, queue and errors."""

from dashboards.common import ALERTS, ANY_MODEL, EVENTS
from dashboards.model import Dashboard, Query, Row
from dashboards.promql import MODEL, RANGE, RATE, growth, mean, quantile, quotient, rate, total
from dashboards.views import (
    BYTES_PER_SECOND,
    COUNT,
    PER_SECOND,
    RATIO,
    SECONDS,
    TOKENS_PER_SECOND,
    lines,
    stat,
    table,
    timeline,
)

# In the order of a server's life; the numbers are this dashboard's own.
STATES = {
    1.0: ("stopped", "#808080"),
    2.0: ("loading", "yellow"),
    3.0: ("warming", "orange"),
    4.0: ("ready", "green"),
    5.0: ("draining", "blue"),
    6.0: ("stopping", "purple"),
    7.0: ("failed", "red"),
}
_BAD_FROM_1 = ((None, "green"), (1.0, "red"))
_STATE_NUMBER = " or ".join(
    f'slipstream_server_state{{{MODEL}, state="{state}"}} * {number:g}' for number, (state, _) in STATES.items()
)
_REQUESTS = total("slipstream_requests_total")
_SERVER_ERRORS = total("slipstream_requests_total", select=f'{MODEL}, outcome="server_error"')
_ALERTS = 'ALERTS{alertname=~"Slipstream.+", alertstate="firing"}'

_NOW = Row(
    "Now",
    (
        stat(
            "Slipstream",
            "Whether the orchestrator answered Prometheus' last scrape. If not, nothing else here is current.",
            'min(up{job="slipstream"})',
            COUNT,
            no_value="not scraped",
            steps=((None, "red"), (1.0, "green")),
            texts={0: "down", 1: "up"},
        ),
        stat(
            "Servers ready",
            "Servers that answer requests now. The others are loaded by the first request that names them.",
            f"sum(slipstream_server_up{{{MODEL}}})",
            COUNT,
            no_value="no model",
        ),
        stat(
            "Requests running",
            "Requests that the gateway has accepted and not yet ended, those that wait for a server included.",
            f"sum(slipstream_requests_running{{{MODEL}}})",
            COUNT,
            no_value="no model",
        ),
        stat(
            "Waiting for a server",
            "Requests that wait for their model to be loaded.",
            f"sum(slipstream_swap_queue_length{{{MODEL}}})",
            COUNT,
            no_value="no model",
        ),
        stat(
            "Errors of ours",
            "Share of the requests in the selected range that ended in an error of ours (HTTP 5xx). Requests that the "
            "client got wrong or left do not count as errors.",
            quotient(f"({_SERVER_ERRORS} or {_REQUESTS} * 0)", _REQUESTS),
            RATIO,
            decimals=2,
            steps=((None, "green"), (0.001, "orange"), (0.05, "red")),
        ),
        stat(
            "Alerts",
            "Alerts that fire now; docs/alerts.md says what each means and what to do.",
            f"count({_ALERTS}) or vector(0)",
            COUNT,
            steps=_BAD_FROM_1,
        ),
    ),
)
_MODELS = Row(
    "Models",
    (
        timeline(
            "State",
            "State of each model's server. `stopped` is no fault: a request loads it. `failed` stays until the backoff "
            "is over or somebody starts it.",
            Query(f"sum by (model) ({_STATE_NUMBER})", "{{model}}"),
            STATES,
            "no model",
        ),
        table(
            "Servers",
            "What is loaded, where, and how it drafts; requests, failures and restarts of the selected range.",
            {
                "": Query(f"max by (model, host, spec_type) (slipstream_server_info{{{MODEL}}})", "", True, "table"),
                "Last start": Query(f"max by (model) (slipstream_server_start_seconds{{{MODEL}}})", "", True, "table"),
                "Requests": Query(total("slipstream_requests_total", "model"), "", True, "table"),
                "Failures": Query(growth("slipstream_server_failures_total", "model", MODEL, RANGE), "", True, "table"),
                "Restarts": Query(total("slipstream_server_restarts_total", "model"), "", True, "table"),
            },
            {"Last start": SECONDS},
            {"model": "Model", "host": "Host", "spec_type": "Speculation"},
            no_value="-",
            width=16,
        ),
        table(
            "Firing alerts",
            "Alerts that fire now; docs/alerts.md has a section on each.",
            {"": Query(f"max by (alertname, severity, model, slot, host) ({_ALERTS})", "", True, "table")},
            {},
            {"alertname": "Alert", "severity": "Severity", "model": "Model", "slot": "Slot", "host": "Host"},
            no_value="none fires",
            width=8,
        ),
    ),
)
_TRAFFIC = Row(
    "Traffic",
    (
        lines(
            "Requests by outcome",
            "Requests that ended, per second: ok, client_error (the client got it wrong), server_error (we did), "
            "cancelled (the client left).",
            (Query(rate("slipstream_requests_total", "outcome"), "{{outcome}}"),),
            PER_SECOND,
            width=8,
            is_stacked=True,
        ),
        lines(
            "Tokens out by model",
            "Tokens generated per second of the clock, idle time included: how much comes out, not how fast one answer "
            "is.",
            (Query(rate("slipstream_slot_predicted_tokens_total", "model"), "{{model}}"),),
            TOKENS_PER_SECOND,
            width=8,
            is_stacked=True,
        ),
        lines(
            "Requests running by model",
            "Requests that the gateway has accepted and not yet ended.",
            (Query(f"sum by (model) (slipstream_requests_running{{{MODEL}}})", "{{model}}"),),
            COUNT,
            width=8,
            is_stacked=True,
        ),
    ),
)
_SWAPS = Row(
    "Swaps and queue",
    (
        lines(
            "Who waits",
            "Requests that wait: for a server to be loaded, and in a loaded one for a free slot.",
            (
                Query(f"sum by (model) (slipstream_swap_queue_length{{{MODEL}}})", "{{model}}: for a server"),
                Query(f"sum by (model) (llamacpp:requests_deferred{{{MODEL}}})", "{{model}}: for a slot"),
            ),
            COUNT,
            no_value="nobody waits",
            width=8,
        ),
        lines(
            "Waits for a server",
            "How long requests waited for their server, 0 included: at most so long for 90 of 100, and the mean.",
            (
                Query(quantile(0.9, "slipstream_swap_wait_seconds"), "90 %"),
                Query(mean("slipstream_swap_wait_seconds"), "mean"),
            ),
            SECONDS,
            width=8,
        ),
        lines(
            "Loads",
            "Mean time from the decision to load a model until it was ready, those who had to go included.",
            (Query(mean("slipstream_swap_seconds", "model"), "{{model}}"),),
            SECONDS,
            no_value="no load",
            width=8,
        ),
    ),
)
_FAULTS = Row(
    "Failures and downloads",
    (
        lines(
            "Failures of servers",
            "Servers that ended by themselves or did not become ready, by reason. Each bar counts the 20 seconds or "
            "more before it, so one failure may stand in several.",
            (Query(growth("slipstream_server_failures_total", "model, reason", MODEL, RATE), "{{model}}: {{reason}}"),),
            COUNT,
            no_value="no failure",
            width=6,
            is_bars=True,
        ),
        lines(
            "Scrapes without an answer",
            "Scrapes that a ready server did not answer in time; its slot series stand still meanwhile. Each bar "
            "counts the 20 seconds or more before it.",
            (Query(growth("slipstream_server_scrape_failures_total", "model", MODEL, RATE), "{{model}}"),),
            COUNT,
            no_value="all were answered",
            width=6,
            is_bars=True,
        ),
        lines(
            "Downloads",
            "Bytes of model files that arrive, per second, by kind of source.",
            (Query(rate("slipstream_download_bytes_total", "source", select=""), "{{source}}"),),
            BYTES_PER_SECOND,
            no_value="no download",
            width=6,
            is_stacked=True,
        ),
        lines(
            "Jobs",
            "Long work: downloads, grafts, checks. Queued and running now, and what ended in the 20 seconds or more "
            "before each point.",
            (
                Query("sum by (kind, state) (slipstream_jobs)", "{{kind}} {{state}}"),
                Query(
                    f"{growth('slipstream_jobs_ended_total', 'kind, outcome', '', RATE)} > 0",
                    "{{kind}} {{outcome}}",
                ),
            ),
            COUNT,
            no_value="no job",
            width=6,
        ),
    ),
)

OVERVIEW = Dashboard(
    "overview",
    "Slipstream: Overview",
    "Models and their state, traffic, swaps, who waits, and what went wrong.",
    (_NOW, _MODELS, _TRAFFIC, _SWAPS, _FAULTS),
    (ANY_MODEL,),
    (*EVENTS, ALERTS),
)
