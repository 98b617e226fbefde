"""Prometheus' text format as llama-server writes it, read fast and strictly.

The client library's own parser takes 40 times as long, and a scrape reads a page of every server.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.errors import Code, SlipstreamError

PREFIX = "llamacpp:"
TOTAL = "_total"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SERIES = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*),?\}})?")
_LABELS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_DECLARED = re.compile(rf"# (HELP|TYPE) ({_NAME})(?: (.*))?")
_KINDS = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_MOST_BYTES = 4 << 20
_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class Family:
    """What a server says of a series name. `kind` is `counter`, `gauge`, `untyped`, …"""

    kind: str = "untyped"
    text: str = ""


@dataclass(frozen=True)
class Exposition:
    """A page: values by series, written `name{label="value"}` with the labels in order, and families by name.

    `counters` only grow; what else there is stands in `gauges`. Stock servers call `llamacpp:n_tokens_max` a counter,
    which is none: a counter's name ends with `_total`.
    """

    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    families: Mapping[str, Family]


def read_exposition(page: bytes) -> Exposition:
    """The `llamacpp:*` series of a llama-server's page; SlipstreamError upstream_failed when it is none."""
    if len(page) > _MOST_BYTES:
        raise _unreadable(f"{len(page)} bytes")
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {}
    kinds: dict[str, str] = {}
    texts: dict[str, str] = {}
    try:
        for line in page.decode().split("\n"):
            if not line:
                continue
            if line[0] == "#":
                _declare(line, kinds, texts)
                continue
            series, _, value = line.rpartition(" ")
            if "_" in value:
                raise ValueError(f"could not convert string to float: {value!r}")
            name, series = canonical(series)
            if name.startswith(PREFIX):
                is_counter = kinds.get(name) == "counter" and name.endswith(TOTAL)
                (counters if is_counter else gauges)[series] = float(value)
    except ValueError as e:
        raise _unreadable(str(e)) from e
    return Exposition(counters, gauges, {name: Family(kind, texts.get(name, "")) for name, kind in kinds.items()})


@lru_cache(_REMEMBERED)
def canonical(series: str) -> tuple[str, str]:
    """Name of a series, and the series with its labels in the order of their names; ValueError when it is none."""
    found = _SERIES.fullmatch(series)
    if found is None:
        raise ValueError(f"not a series: {series[:200]!r}")
    name, labels = found.groups()
    pairs = sorted((m[1], m[0]) for m in _LABELS.finditer(labels or ""))
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a label stands twice: {series[:200]!r}")
    return name, f"{name}{{{','.join(pair for _, pair in pairs)}}}" if pairs else name


@lru_cache(_REMEMBERED)
def parts(series: str) -> tuple[str, Mapping[str, str]]:
    """Name and labels of a series."""
    name, _, labels = series.partition("{")
    return name, {m[1]: _ESCAPED.sub(_plain, m[2]) for m in _LABELS.finditer(labels)}


def written(name: str, labels: Mapping[str, str]) -> str:
    """A series as it stands on a page."""
    pairs = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
    return f"{name}{{{pairs}}}" if pairs else name


def _declare(line: str, kinds: dict[str, str], texts: dict[str, str]) -> None:
    if not line.startswith(("# HELP", "# TYPE")):
        return
    found = _DECLARED.fullmatch(line)
    if found is None or (found[1] == "TYPE" and found[3] not in _KINDS):
        raise ValueError(f"not a declaration: {line[:200]!r}")
    if found[1] == "TYPE":
        kinds[found[2]] = found[3]
    else:
        texts[found[2]] = _ESCAPED.sub(_plain, found[3] or "")


def _plain(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _unreadable(why: str) -> SlipstreamError:
    return SlipstreamError(Code.UPSTREAM_FAILED, f"llama-server's metrics are not readable: {why}")
