"""Histograms by model, whose series end with the model."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from prometheus_client import Histogram, Metric, disable_created_metrics
from prometheus_client.registry import Collector

# The client library knows this for the whole process alone. Nobody asks for the series, which are as many as the sums.
disable_created_metrics()  # type: ignore[no-untyped-call]


class ModelHistogram(Collector):
    """One histogram of the client library with the label `model`, in no registry. Safe for threads."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        self._histogram = Histogram(name, documentation, ("model",), registry=None, buckets=buckets)
        # Found here faster than by `labels`, which locks and compares.
        self._children: dict[str, Histogram] = {}

    def expect(self, model: str) -> None:
        """Show a model with 0: `rate()` does not see the first observation of a series that begins with it."""
        self._child(model)

    def observe(self, model: str, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Count one value. `model` is a name of the catalogue; the exemplar is shown in OpenMetrics alone."""
        self._child(model).observe(value, dict(exemplar) if exemplar else None)

    def keep_only(self, models: Collection[str]) -> None:
        """Forget models that are gone: their series end."""
        for model in self._children.keys() - set(models):
            del self._children[model]
            self._histogram.remove(model)

    def collect(self) -> Iterable[Metric]:
        """One family."""
        return self._histogram.collect()

    def _child(self, model: str) -> Histogram:
        child = self._children.get(model)
        if child is None:
            child = self._children[model] = self._histogram.labels(model)
        return child
