"""Histograms of the gateway against what clients and servers measured of the same answers.

What a client waits is never less than what the gateway measures, and the gateway's figure is never less than the time
that llama-server itself took. So at every bound as many of the gateway's values are below it as of the clients' or
more, and no more than of the server's.
"""

from collections.abc import Callable

import pytest

from tests.integration.observability.asking import Answer
from tests.integration.observability.histograms import buckets
from tests.integration.observability.known import CATALOGUE, KINDS, Known

pytestmark = pytest.mark.integration

FIRST_TOKEN = "slipstream_time_to_first_token_seconds"
REQUEST = "slipstream_request_seconds"
PER_TOKEN = "slipstream_time_per_output_token_seconds"
ARRIVALS = "slipstream_inter_token_latency_seconds"
Seconds = Callable[[Answer], float]
MEASURED: dict[str, tuple[Seconds, Seconds]] = {
    FIRST_TOKEN: (lambda a: a.first_token_seconds, lambda a: a.timings["prompt_ms"] / 1000),
    REQUEST: (lambda a: a.seconds, lambda a: (a.timings["prompt_ms"] + a.timings["predicted_ms"]) / 1000),
}


def of(known: Known, model: str) -> list[Answer]:
    return [answer for answer in known.answers if answer.model == model]


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("name", MEASURED)
def test_values_lie_between_those_of_server_and_client(known: Known, name: str, model: str) -> None:
    of_client, of_server = MEASURED[name]
    answers = of(known, model)
    # Whoever got no answer was not measured, or is over at once.
    more = known.grown(f"{name}_count", model=model) - len(answers)
    assert (
        0 <= more <= sum(count for (its, outcome), count in known.requests.items() if (its, outcome) != (model, "ok"))
    )
    for bound, count in buckets(known, name, [model]):
        least = sum(of_client(answer) <= bound for answer in answers)
        most = sum(of_server(answer) <= bound for answer in answers) + more
        assert least <= count <= most, f"at most {bound:g} s"
    sums = [sum(map(seconds, answers)) for seconds in (of_server, of_client)]
    assert sums[0] <= known.grown(f"{name}_sum", model=model) <= sums[1] + more


@pytest.mark.parametrize("model", KINDS)
def test_time_per_token_is_that_of_the_answer_after_its_first(known: Known, model: str) -> None:
    answers = of(known, model)
    assert known.grown(f"{PER_TOKEN}_count", model=model) == len(answers)
    most = sum(answer.seconds / (answer.timings["predicted_n"] - 1) for answer in answers)
    assert 0 < known.grown(f"{PER_TOKEN}_sum", model=model) <= most


@pytest.mark.parametrize("model", KINDS)
def test_gaps_are_those_between_arrivals(known: Known, model: str) -> None:
    answers = of(known, model)
    # Pieces that arrive together are one arrival at the gateway.
    count = known.grown(f"{ARRIVALS}_count", model=model)
    assert 0 < count <= sum(answer.arrivals - 1 for answer in answers)
    assert 0 < known.grown(f"{ARRIVALS}_sum", model=model) <= sum(answer.seconds for answer in answers)


def test_waits_and_loads_are_as_many_as_there_were(known: Known) -> None:
    for model in CATALOGUE:
        asked = sum(count for (its, _), count in known.requests.items() if its == model)
        waited = known.grown("slipstream_swap_wait_seconds_count", model=model)
        answered = len(of(known, model))
        assert answered <= waited <= asked
        assert known.grown("slipstream_swap_seconds_count", model=model) == len(known.loads(model))
