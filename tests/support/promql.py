"""PromQL read by a parser: which series an expression asks for, by which labels."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
from ruamel.yaml import YAML

from dashboards import queries, substitute
from tests import REPOSITORY

METRICS_PAGE = REPOSITORY / "docs" / "metrics.md"
RULES = REPOSITORY / "docker" / "prometheus" / "rules"
_ROW = re.compile(r"^\| *`(slipstream_\w+)` *\|([^|]*)\|", re.M)
_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


class Rule(NamedTuple):
    """One rule; `name` is that of the series it records, or of the alert."""

    name: str
    expr: str
    is_alert: bool
    annotations: Mapping[str, str]


class Selector(NamedTuple):
    """One series name that is asked for, and the labels that it is chosen by."""

    name: str
    labels: frozenset[str]


@cache
def rules() -> tuple[Rule, ...]:
    """Every recording rule and alert of docker/prometheus/rules."""
    return tuple(
        Rule(rule.get("record") or rule["alert"], rule["expr"], "alert" in rule, rule.get("annotations", {}))
        for file in sorted(RULES.glob("*.yml"))
        for group in YAML(typ="safe").load(file)["groups"]
        for rule in group["rules"]
    )


def asked() -> Iterator[tuple[str, str]]:
    """Everything that is ever asked, as (where, PromQL without Grafana's variables)."""
    for query in queries():
        yield f"{query.dashboard} · {query.panel} · {query.ref_id}", substitute(query.expr)
    for rule in rules():
        yield rule.name, rule.expr


def selectors(expr: str) -> set[Selector]:
    """Selectors of an expression; ValueError when it is no PromQL."""
    found: set[Selector] = set()

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            if not node.name:
                raise ValueError(f"a selector without a name in {expr}")
            found.add(Selector(node.name, frozenset(matcher.name for matcher in node.matchers.matchers)))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def unguarded(expr: str) -> list[str]:
    """Parts that may say NaN: a division by what is not `> 0`, a quantile that is not `>= 0`."""
    found: list[str] = []
    guarded: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.BinaryExpr):
            if str(node.op) == "/" and not _is_above_zero(node.rhs):
                found.append(node.prettify())
            if str(node.op) == ">=" and _is_zero(node.rhs):
                guarded.add(node.lhs.prettify())
        is_quantile = isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile"
        if is_quantile and node.prettify() not in guarded:
            found.append(node.prettify())

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def _is_above_zero(node: Any) -> bool:
    """A number, or something in brackets that is there only where it is above 0 or a number greater than that."""
    if isinstance(node, promql_parser.ParenExpr):
        inner = node.expr
        if not isinstance(inner, promql_parser.BinaryExpr) or str(inner.op) != ">":
            return False
        return isinstance(inner.rhs, promql_parser.NumberLiteral) and inner.rhs.val >= 0
    return isinstance(node, promql_parser.NumberLiteral) and node.val > 0


def _is_zero(node: object) -> bool:
    return isinstance(node, promql_parser.NumberLiteral) and node.val == 0


def documented() -> dict[str, frozenset[str]]:
    """Series of docs/metrics.md and their labels."""
    rows = _ROW.findall(METRICS_PAGE.read_text())
    # The first row of a name is that of the list; later tables say more of some.
    return {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, labels in reversed(rows)}


def family(name: str, known: Iterable[str]) -> str:
    """The name under which a series is documented: a histogram's parts have the histogram's."""
    short = _HISTOGRAM.sub("", name)
    return short if name not in known and short in known else name


def as_rules(expressions: Iterable[str]) -> str:
    """A rule file that records each expression, so that promtool reads them all. JSON is YAML."""
    recorded = [{"record": f"check:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    return json.dumps({"groups": [{"name": "check", "rules": recorded}]})


def prometheus_configuration(name: str) -> dict[str, Any]:
    """A file of docker/prometheus."""
    path: Path = REPOSITORY / "docker" / "prometheus" / name
    found: dict[str, Any] = YAML(typ="safe").load(path)
    return found
