"""What every query of every dashboard is to say about the known traffic.

A panel is found by its dashboard, its title and the reference of its query. Windows are all `known.window_seconds`
long, so that all traffic is in them: `increase()` is what was counted, `rate()` that by the length of the window.
"""

import os

from tests.integration.observability.figures import Expect, Values, labelled
from tests.integration.observability.histograms import means, means_by_model, quantiles, quantiles_by_model
from tests.integration.observability.known import KINDS, Known
from tests.integration.observability.overview import OVERVIEW
from tests.integration.observability.places import LOCAL, Key, Table
from tests.integration.observability.speculation import SPECULATION

_LATENCIES = {
    "Time to first token": "slipstream_time_to_first_token_seconds",
    "Time per output token": "slipstream_time_per_output_token_seconds",
    "Between arrivals": "slipstream_inter_token_latency_seconds",
    "Whole request": "slipstream_request_seconds",
    "Wait for a server": "slipstream_swap_wait_seconds",
    "Loads": "slipstream_swap_seconds",
}


def _instances(known: Known) -> dict[str, float]:
    views = [known.house.view(model) for model in KINDS]
    found: dict[str, float] = {}
    for instance in (instance for view in views for instance in view["instances"]):
        for device, size in instance["needs_bytes"].items():
            found[device] = found.get(device, 0.0) + size
    return found


def _reserved(known: Known) -> Values:
    return {labelled(host=LOCAL, device=device): size for device, size in _instances(known).items()}


def _budget(known: Known) -> Values:
    """Nine tenths of this machine's memory."""
    return {labelled(host=LOCAL, device="host"): 0.9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}


def _reserved_ratio(known: Known) -> Values:
    return {labels: size / _budget(known)[labels] for labels, size in _reserved(known).items()}


_LATENCY: Table = {
    ("First token, half", "A"): quantiles(0.5, "slipstream_time_to_first_token_seconds"),
    ("First token, 99 %", "A"): quantiles(0.99, "slipstream_time_to_first_token_seconds"),
    ("Per token, half", "A"): quantiles(0.5, "slipstream_time_per_output_token_seconds"),
    ("Per token, 99 %", "A"): quantiles(0.99, "slipstream_time_per_output_token_seconds"),
    ("Between arrivals, 99 %", "A"): quantiles(0.99, "slipstream_inter_token_latency_seconds"),
    ("Wait for a server, 99 %", "A"): quantiles(0.99, "slipstream_swap_wait_seconds"),
}
for _title, _name in _LATENCIES.items():
    _LATENCY |= {(_title, ref): quantiles(q, _name) for ref, q in (("A", 0.5), ("B", 0.9), ("C", 0.99))}
    _LATENCY[_title, "D"] = means(_name)
    _LATENCY[f"{_title} by model", "A"] = means_by_model(_name)
    _LATENCY[f"{_title} by model", "B"] = quantiles_by_model(0.9, _name)
_MACHINES: Table = {
    ("Reserved of the budget", "A"): _reserved_ratio,
    ("Reserved", "A"): _reserved,
    ("Reserved", "B"): _budget,
    ("Accelerators", "A"): lambda _: {labelled(host=LOCAL): 0.0},
    ("Accelerators", "B"): lambda _: {labelled(host=LOCAL): 0.0},
}
EXPECTED: dict[Key, Expect] = {
    Key(dashboard, *rest): expect
    for dashboard, table in (
        *(("overview", OVERVIEW), ("speculation", SPECULATION)),
        *(("latency", _LATENCY), ("machines", _MACHINES)),
    )
    for rest, expect in table.items()
}
