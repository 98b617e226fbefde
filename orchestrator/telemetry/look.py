"""One look at every server: what collectors of speculation are built from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.telemetry.exposition import Family
from orchestrator.telemetry.ledger import Account

Values = Mapping[str, float]
"""By series, written as in exposition.py."""


@dataclass(frozen=True)
class Look:
    """What was found at one time; nothing in it changes afterwards.

    `at` is monotonic. `counters` holds every model that has run, `gauges` those that serve now and have answered.
    By model: `current` is the account that it was last started for, `flags` are the sums with the flags of now and, if
    there were others, of before, `failures` counts how often its server was asked in vain.
    """

    at: float = 0.0
    counters: Mapping[Account, Values] = field(default_factory=dict)
    gauges: Mapping[Account, Values] = field(default_factory=dict)
    current: Mapping[str, Account] = field(default_factory=dict)
    flags: Mapping[str, tuple[Values, ...]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    families: Mapping[str, Family] = field(default_factory=dict)
