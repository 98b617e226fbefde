"""Gaps between the pieces of streamed answers. Noted in each answer's own buckets, added up once when it is over."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import Exemplar, HistogramMetricFamily
from prometheus_client.registry import Collector

# A token of a small model on a card takes a millisecond, one of a large model on a CPU takes seconds.
TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
_LE = (*map(str, TOKEN_BUCKETS), "+Inf")
_Bucket = tuple[str, float] | tuple[str, float, Exemplar]


class Gaps(NamedTuple):
    """Those of one answer: how many in each of `TOKEN_BUCKETS` and beyond, all together, and the longest."""

    counts: Sequence[int]
    seconds: float
    longest_seconds: float


class GapHistogram(Collector):
    """All of them, by model. The exemplar of a bucket is the last answer whose longest gap fell into it."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name, self._documentation = name, documentation
        self._counts: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._exemplars: dict[str, dict[int, Exemplar]] = {}
        self._lock = Lock()

    def expect(self, model: str) -> None:
        """Show a model with 0."""
        with self._lock:
            self._counts.setdefault(model, [0] * len(_LE))
            self._seconds.setdefault(model, 0.0)

    def add(self, model: str, gaps: Gaps, at: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Count those of one answer; `at` is Unix time. `model` is a name of the catalogue."""
        self.expect(model)
        with self._lock:
            counts = self._counts[model]
            for number, count in enumerate(gaps.counts):
                if count:
                    counts[number] += count
            self._seconds[model] += gaps.seconds
            if exemplar:
                bucket = sum(gaps.longest_seconds > bound for bound in TOKEN_BUCKETS)
                self._exemplars.setdefault(model, {})[bucket] = Exemplar(dict(exemplar), gaps.longest_seconds, at)

    def keep_only(self, models: Collection[str]) -> None:
        """Forget models that are gone: their series end."""
        with self._lock:
            for model in self._counts.keys() - set(models):
                del self._counts[model], self._seconds[model]
                self._exemplars.pop(model, None)

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=("model",))
        with self._lock:
            for model, counts in self._counts.items():
                family.add_metric([model], self._buckets(counts, self._exemplars.get(model, {})), self._seconds[model])
        yield family

    def _buckets(self, counts: Sequence[int], exemplars: Mapping[int, Exemplar]) -> list[_Bucket]:
        buckets: list[_Bucket] = []
        below = 0
        for number, (le, count) in enumerate(zip(_LE, counts, strict=True)):
            below += count
            exemplar = exemplars.get(number)
            buckets.append((le, float(below)) if exemplar is None else (le, float(below), exemplar))
        return buckets
