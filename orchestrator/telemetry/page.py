"""The metrics page: what collectors tell, in Prometheus' text format or as OpenMetrics.

Written here rather than by the client library: for the thousands of series of a page its encoders take a hundred times
as long, and would escape the colon of `llamacpp:x` in samples though not in types.
"""

import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from orchestrator.telemetry.exposition import written
from orchestrator.telemetry.family import WrittenFamily

# The text format knows fewer kinds, and a counter's or info's name with its ending.
_TEXT_KINDS = {"info": "gauge", "stateset": "gauge", "gaugehistogram": "histogram", "unknown": "untyped"}
_TEXT_ENDINGS = {"counter": "_total", "info": "_info"}
_SAME_BELOW = 1e6
# Without a pause others may not come in: who lets go of the interpreter and takes it again at once gets it.
_PAUSE_SECONDS = 50e-6


def render(collectors: Iterable[Collector], accept: str) -> tuple[bytes, str]:
    """The page and its content type, as the header `Accept` asks for it. For a thread."""
    is_openmetrics = _wants_openmetrics(accept)
    texts: list[str] = []
    for collector in collectors:
        texts += [_text(family, is_openmetrics) for family in collector.collect()]
        give_way()
    if is_openmetrics:
        return "".join([*texts, "# EOF\n"]).encode(), CONTENT_TYPE_LATEST
    return "".join(texts).encode(), CONTENT_TYPE_PLAIN_0_0_4


def _wants_openmetrics(accept: str) -> bool:
    """Whether one of the media ranges is OpenMetrics 1, as Prometheus names it first by default."""
    for media_range in accept.split(","):
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        versions = [value for name, _, value in (p.partition("=") for p in parameters) if name == "version"]
        if kind.lower() == "application/openmetrics-text" and all(v.startswith("1.") for v in versions):
            return True
    return False


def give_way() -> None:
    """Let the event loop have its turn: it would wait 5 ms for a thread that computes."""
    time.sleep(_PAUSE_SECONDS)


def _text(family: Metric, is_openmetrics: bool) -> str:
    name, kind = family.name, family.type
    if not is_openmetrics:
        name, kind = name + _TEXT_ENDINGS.get(kind, ""), _TEXT_KINDS.get(kind, kind)
    about = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    if is_openmetrics:
        about = about.replace('"', r"\"")
    lines = _written(family) if isinstance(family, WrittenFamily) else _samples(family, is_openmetrics)
    return "".join([f"# HELP {name} {about}\n# TYPE {name} {kind}\n", *lines])


def _written(family: WrittenFamily) -> list[str]:
    return [f"{series} {value!r}\n" for series, value in family.rows]


def _samples(family: Metric, is_openmetrics: bool) -> Iterator[str]:
    for sample in family.samples:
        series = _series(sample.name, tuple(sample.labels.items()))
        exemplar = _exemplar(sample.exemplar) if is_openmetrics and sample.exemplar else ""
        yield f"{series} {_number(sample.value)}{exemplar}\n"


@lru_cache(1 << 16)
def _series(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    return written(name, dict(labels))


def _number(value: float) -> str:
    # The client library's way to write numbers; that of Python is the same for most, and faster.
    return repr(float(value)) if 0 <= value < _SAME_BELOW else str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _exemplar(exemplar: Exemplar) -> str:
    at = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f" # {written('', exemplar.labels)} {_number(exemplar.value)}{at}"
