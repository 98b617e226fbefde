"""Counters of models that go on while the servers that count come and go: pure.

A server counts from 0; what a model has counted is the sum over its servers, each without what it had counted before
it took requests (its warm-up, or what it did before a restart of ours). Only growth is added, so no sum ever falls,
and nothing is added twice.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

# What is summed over slots since the flags of a model have changed, by its name at the server.
FLAG_SUMS = {
    f"llamacpp:slot_{name}_total": name
    for name in ("predicted_tokens", "predicted_seconds", "draft_tokens", "accepted_tokens", "verification_steps")
}
# What runs now, and what ran before the flags changed.
_PERIODS = 2


@dataclass(frozen=True)
class Account:
    """Whose counters: those of a model while its servers speculated in one way."""

    model: str
    spec_type: str


@dataclass
class _Period:
    """The servers that ran with the same flags, one after another or at once."""

    key: str
    account: Account
    sums: dict[str, float] = field(default_factory=dict)


@dataclass
class _Source:
    """A server that counts. `last` is None as long as it has not been read."""

    account: Account
    period: _Period
    last: dict[str, float] | None = None


class Ledger:
    """Sums of counters by account and series. Sources are instances, by their number."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = {}
        self._sums: dict[Account, dict[str, float]] = {}
        self._periods: dict[str, list[_Period]] = {}

    def begin(self, number: int, account: Account, flags: str) -> None:
        """A server takes requests from now on. What it counts first is what it had counted before, and no user's.

        `flags` is the key of its launch.
        """
        periods = self._periods.setdefault(account.model, [])
        if not periods or periods[0].key != flags:
            periods.insert(0, _Period(flags, account))
            del periods[_PERIODS:]
        self._sources[number] = _Source(account, periods[0])

    def count(self, number: int, counters: Mapping[str, float]) -> None:
        """What a server says it has counted; nothing when it has ended. A counter that fell has begun anew at 0."""
        source = self._sources.get(number)
        if source is None:
            return
        sums = self._sums.setdefault(source.account, {})
        last, is_first = source.last or {}, source.last is None
        for series, value in counters.items():
            if not 0 <= value < math.inf:
                continue
            before = last.get(series, 0.0)
            grown = 0.0 if is_first else value - before if value >= before else value
            last[series] = value
            sums[series] = sums.get(series, 0.0) + grown
            if (name := _flag_sum(series)) is not None:
                source.period.sums[name] = source.period.sums.get(name, 0.0) + grown
        source.last = last

    def end(self, number: int) -> None:
        """A server has ended; what it counted stays."""
        self._sources.pop(number, None)

    def keep_only(self, models: Collection[str]) -> None:
        """Forget models that are gone: their series end. One whose server counts is there, whatever `models` says: it
        may have come after they were listed."""
        kept = {*models, *(source.account.model for source in self._sources.values())}
        self._sums = {account: sums for account, sums in self._sums.items() if account.model in kept}
        self._periods = {model: periods for model, periods in self._periods.items() if model in kept}

    def sums(self) -> dict[Account, dict[str, float]]:
        """A copy of every sum."""
        return {account: dict(sums) for account, sums in self._sums.items()}

    def current(self) -> dict[str, Account]:
        """By model: whose counters its newest server adds to."""
        return {model: periods[0].account for model, periods in self._periods.items()}

    def flags(self) -> dict[str, tuple[dict[str, float], ...]]:
        """By model: sums over its slots since its flags changed, then those with the flags before, if there were."""
        return {model: tuple(dict(period.sums) for period in periods) for model, periods in self._periods.items()}


@lru_cache(1 << 16)
def _flag_sum(series: str) -> str | None:
    return FLAG_SUMS.get(series.partition("{")[0])
