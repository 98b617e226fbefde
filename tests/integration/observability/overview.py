"""What the overview is to say about the known traffic."""

from collections.abc import Callable

from tests.integration.observability.figures import Values, labelled, nothing, values
from tests.integration.observability.histograms import means, quantiles
from tests.integration.observability.known import CATALOGUE, KINDS, Known
from tests.integration.observability.places import LOCAL, Table, each, one, rate_by_model

_OUTCOMES = ("ok", "client_error", "server_error", "cancelled")
_STATE_NUMBERS = {"stopped": 1.0, "ready": 4.0}


def _of_requests(known: Known, key: Callable[[tuple[str, str]], bool]) -> float:
    return float(sum(count for request, count in known.requests.items() if key(request)))


def _errors_of_ours(known: Known) -> Values:
    errors = _of_requests(known, lambda request: request[1] == "server_error")
    return {labelled(): errors / _of_requests(known, lambda _: True)}


def _requests_by_model(known: Known) -> Values:
    return {labelled(model=m): _of_requests(known, lambda r, m=m: r[0] == m) for m in CATALOGUE}  # type: ignore[misc]


def _requests_by_outcome(known: Known) -> Values:
    counts = {o: _of_requests(known, lambda r, o=o: r[1] == o) for o in _OUTCOMES}  # type: ignore[misc]
    return {labelled(outcome=outcome): count / known.window_seconds for outcome, count in counts.items()}


def _states(known: Known) -> Values:
    return {labelled(model=m): _STATE_NUMBERS["ready" if m in KINDS else "stopped"] for m in CATALOGUE}


def _infos(known: Known) -> Values:
    return {labelled(model=m, host=LOCAL, spec_type=kind.spec_type): 1.0 for m, kind in KINDS.items()}


def _start_seconds(known: Known) -> Values:
    return {labelled(model=model): known.house.view(model)["start_seconds"] for model in KINDS}


def _failures(known: Known) -> Values:
    """One was killed, and nothing else failed."""
    return {labelled(model=model): float(model == "plain") for model in KINDS}


def _restarts(known: Known) -> Values:
    """A change of flags is one, and so is a kill."""
    return {labelled(model=m): float(len(known.loads(m))) for m in CATALOGUE}


def _failures_by_reason(known: Known) -> Values:
    known_reasons = {
        dict(labels)["reason"]
        for name, labels in known.after.values
        if "failures_total" in name and ("reason") in dict(labels)
    }
    return {
        labelled(model=model, reason=reason): float((model, reason) == ("plain", "killed"))
        for model in KINDS
        for reason in known_reasons
    }


def _mean_loads(known: Known) -> Values:
    return values((labelled(model=m), sum(s) / len(s) if (s := known.loads(m)) else None) for m in CATALOGUE)


def _scrape_failures(known: Known) -> Values:
    """A server that was stopped and killed may have left one unanswered; how many, the page knows alone."""
    name = "slipstream_server_scrape_failures_total"
    return {labelled(model=model): known.after.values[name, labelled(model=model)] for model in CATALOGUE}


def _downloads(known: Known) -> Values:
    bytes_by_source = {"hf": 0, "url": known.fetched_bytes, "pypi": 0}
    return {labelled(source=source): size / known.window_seconds for source, size in bytes_by_source.items()}


def _jobs(known: Known) -> Values:
    return {
        labelled(kind=kind, state=state): 0.0 for kind in ("pull", "graft", "verify") for state in ("queued", "running")
    }


OVERVIEW: Table = {
    ("Slipstream", "A"): one(1),
    ("Servers ready", "A"): one(len(KINDS)),
    ("Requests running", "A"): one(0),
    ("Waiting for a server", "A"): one(0),
    ("Errors of ours", "A"): _errors_of_ours,
    ("Alerts", "A"): one(0),
    ("State", "A"): _states,
    ("Servers", "A"): _infos,
    ("Servers", "B"): _start_seconds,
    ("Servers", "C"): _requests_by_model,
    ("Servers", "D"): _failures,
    ("Servers", "E"): _restarts,
    ("Firing alerts", "A"): nothing,
    ("Requests by outcome", "A"): _requests_by_outcome,
    ("Tokens out by model", "A"): rate_by_model("predicted_tokens"),
    ("Requests running by model", "A"): each(CATALOGUE, 0),
    ("Who waits", "A"): each(CATALOGUE, 0),
    ("Who waits", "B"): each(KINDS, 0),
    ("Waits for a server", "A"): quantiles(0.9, "slipstream_swap_wait_seconds"),
    ("Waits for a server", "B"): means("slipstream_swap_wait_seconds"),
    ("Loads", "A"): _mean_loads,
    ("Failures of servers", "A"): _failures_by_reason,
    ("Scrapes without an answer", "A"): _scrape_failures,
    ("Downloads", "A"): _downloads,
    ("Jobs", "A"): _jobs,
    ("Jobs", "B"): lambda _: {labelled(kind="pull", outcome="succeeded"): 1.0},
}
