"""A family of very many samples."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.samples import Sample

from orchestrator.telemetry.exposition import parts


class WrittenFamily(Metric):
    """A counter or gauge whose series are text already: an object for each sample would cost more than all else.

    `rows` are series with their values. Whoever wants samples gets them.
    """

    def __init__(self, name: str, documentation: str, kind: str) -> None:
        self.rows: list[tuple[str, float]] = []
        super().__init__(name, documentation, kind)

    @property
    def samples(self) -> list[Sample]:
        """The rows as the client library has them."""
        return list(self._samples())

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        """The client library begins with none."""

    def _samples(self) -> Iterator[Sample]:
        for series, value in self.rows:
            name, labels = parts(series)
            yield Sample(name, dict(labels), value)
