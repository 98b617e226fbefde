"""Backoff of models that keep failing."""

import pytest

from orchestrator.servers.scheduling.quarantine import backoff_seconds


@pytest.mark.parametrize(
    ("strikes", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (100_000, 300)]
)
def test_it_doubles_from_ten_seconds_to_five_minutes(strikes: int, seconds: float) -> None:
    assert backoff_seconds(strikes) == seconds
