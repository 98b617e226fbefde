"""The known traffic, once for all tests that hold an answer of Prometheus to it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.integration.observability.known import Known, known_traffic
from tests.integration.observability.machine import NODE_JOB, OTHERS_JOB, node_exporter_flags, page_of_others
from tests.integration.observability.places import LOCAL
from tests.support import ToyBox
from tests.support.exporters import node_exporter_program, running_node_exporter, running_page
from tests.support.prometheus import Target, prometheus_program, rules_within

RULES = REPOSITORY / "docker" / "prometheus" / "rules"


@pytest.fixture(scope="session")
def known(patched_server: Path, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """Real servers, a real Prometheus with our rules, traffic that is over."""
    prometheus_program()
    home = tmp_path_factory.mktemp("known")
    # Alerts wait as they do; groups are evaluated at the interval of this Prometheus.
    rules = rules_within(600.0, sorted(RULES.glob("*.yml")), home / "rules")
    here = {"host": LOCAL}
    with ExitStack() as stack:
        targets = [Target(OTHERS_JOB, stack.enter_context(running_page(page_of_others)), here)]
        if program := node_exporter_program():
            node = running_node_exporter(program, node_exporter_flags(), home / "node-exporter.log")
            targets.append(Target(NODE_JOB, stack.enter_context(node), here))
        yield stack.enter_context(known_traffic(patched_server, toys, home, rules, targets))
