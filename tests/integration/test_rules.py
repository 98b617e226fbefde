"""Prometheus' own tools on our rules, their tests, our configuration and every query; a real exporter on our names."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from dashboards.exporters import EXPORTERS
from tests import REPOSITORY
from tests.support import eventually
from tests.support.promql import RULES, as_rules, asked, rules

PROMETHEUS = REPOSITORY / "docker" / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
_LISTENING = re.compile(r'msg="Listening on".* address=(\S+)')
DEADLINE_SECONDS = 20.0

pytestmark = pytest.mark.integration


def program(name: str, package: str) -> str:
    """Its path; skipped loudly where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: {name} is not installed. Debian: apt-get install {package}")
    return found


def promtool(*arguments: str | Path) -> str:
    """What it says; it must succeed."""
    argv = [program("promtool", "prometheus"), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def cases() -> list[dict[str, Any]]:
    found = [YAML(typ="safe").load(file)["tests"] for file in TESTS]
    return [case for tests in found for case in tests]


def test_rules_and_configuration_are_read() -> None:
    promtool("check", "rules", *sorted(RULES.glob("*.yml")))
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    # The key's file is there in the container alone.
    promtool("check", "config", "--syntax-only", PROMETHEUS / "prometheus.keys.yml")


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_rules_do_what_their_tests_say(file: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", file)


def test_every_alert_is_tested_firing_and_silent() -> None:
    fires: set[str] = set()
    is_silent: set[str] = set()
    for case in cases():
        for test in case.get("alert_rule_test", ()):
            fires |= {test["alertname"]} if test["exp_alerts"] else set()
            # Silent: at another time, or at this one for one of the models or hosts of the case.
            subjects = {
                match
                for series in case["input_series"]
                for match in re.findall(r'(?:model|host)="(\w+)"', series["series"])
            }
            if len(test["exp_alerts"]) < max(1, len(subjects)):
                is_silent.add(test["alertname"])
    alerts = {rule.name for rule in rules() if rule.is_alert}
    assert (fires, is_silent) == (alerts, alerts)


def test_every_recording_rule_is_tested() -> None:
    tested = " ".join(test["expr"] for case in cases() for test in case.get("promql_expr_test", ()))
    assert {rule.name for rule in rules() if not rule.is_alert and rule.name not in tested} == set()


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    file = tmp_path / "queries.yml"
    expressions = [expr for _, expr in asked()]
    file.write_text(as_rules(expressions))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", file)


@contextmanager
def node_exporter(log: Path) -> Iterator[str]:
    """The real one with the collectors of docker/exporters.yaml; yields its address."""
    service = YAML(typ="safe").load(REPOSITORY / "docker" / "exporters.yaml")["services"]["node-exporter"]
    collectors = [flag.replace("$$", "$") for flag in service["command"] if flag.startswith("--collector.")]
    argv = [program("prometheus-node-exporter", "prometheus-node-exporter"), "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as sink:
        process = subprocess.Popen([*argv, *collectors], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        found = eventually(lambda: _LISTENING.search(log.read_text()), "it listens", DEADLINE_SECONDS)
        yield f"http://{found[1]}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_SECONDS)


def test_the_node_exporter_has_what_the_dashboards_ask_of_it(tmp_path: Path) -> None:
    with node_exporter(tmp_path / "log") as url:
        page = httpx.get(f"{url}/metrics", trust_env=False).text
    names = set(re.findall(r"^(node_\w+)(?:\{| )", page, re.M))
    # A kernel without pressure stall information has none to tell.
    optional = set() if Path("/proc/pressure/cpu").exists() else {n for n in EXPORTERS["node"] if "pressure" in n}
    assert EXPORTERS["node"] - names <= optional
