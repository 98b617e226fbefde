from collections.abc import Callable

import pytest

from orchestrator.store.fetching.growth import Growth
from orchestrator.store.http.limits import Limits

LEFT = 1 << 40


def run(growth: Growth, rate: Callable[[int], float], left_bytes: int = LEFT) -> int:
    """Connections in the end, where `rate` tells bytes a second for so many of them."""
    done = 0.0
    for tick in range(1, 200):
        done += rate(growth.connections) * 0.1
        growth.measure(tick * 0.1, int(done), left_bytes)
    return growth.connections


@pytest.mark.parametrize(
    "rate, connections",
    [
        (lambda n: 5e7 * n, 8),
        (lambda n: 5e7, 1),
        (lambda n: 5e7 * min(n, 2), 2),
        (lambda n: 5e7 * min(n, 4) / (1 + 0.1 * max(0, n - 4)), 4),
        (lambda n: 5e7 / n, 1),
    ],
    ids=["each gets its own", "the line is full", "two fill it", "too many cost", "a server that slows down"],
)
def test_connections_follow_what_they_gain(rate: Callable[[int], float], connections: int) -> None:
    assert run(Growth(Limits()), rate) == connections


def test_what_is_nearly_over_gets_no_further_connection() -> None:
    assert run(Growth(Limits()), lambda n: 5e7 * n, left_bytes=10_000_000) == 1


def test_nothing_is_decided_while_nothing_comes() -> None:
    assert run(Growth(Limits()), lambda n: 0.0) == 1


def test_a_server_that_refuses_is_not_asked_again() -> None:
    growth = Growth(Limits())
    assert run(growth, lambda n: 5e7 * n) == 8
    growth.cap(3)
    assert growth.connections == 3 and run(growth, lambda n: 5e7 * n) == 3


def test_one_is_all_where_one_is_allowed() -> None:
    assert run(Growth(Limits(connections=1)), lambda n: 5e7 * n) == 1
