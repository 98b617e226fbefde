"""Generated requests over the whole API of a running orchestrator: every answer is one that the document names."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.api.conftest import Locked
from tests.support.orchestrator import processes_naming

pytestmark = pytest.mark.integration
CONFIG = Path(__file__).with_name("schemathesis.toml")
DEADLINE_SECONDS = 300
PHASES = {"Examples", "Coverage", "Fuzzing", "Stateful"}


def requests_by_phase(report: Path) -> Counter[str]:
    """Number of requests that were answered, by phase."""
    found: Counter[str] = Counter()
    for line in report.read_text().splitlines():
        event = json.loads(line).get("ScenarioFinished")
        if event is not None:
            answered = [i for i in event["recorder"].get("interactions", {}).values() if i.get("response")]
            found[str(event["phase"]).rpartition(".")[2].capitalize()] += len(answered)
    return found


def test_the_api_does_what_its_document_says(locked: Locked, tmp_path: Path) -> None:
    report = tmp_path / "report.ndjson"
    url = f"{locked.house.base_url}/api/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "--no-color"]
    command += ["run", url, "--report", "ndjson", "--report-ndjson-path", str(report)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    counted = requests_by_phase(report)
    assert sum(counted.values()) > 1000, counted
    locked.house.require_alive()
    log = locked.house.log_text()
    assert "Traceback" not in log and " ERROR " not in log
    locked.house.close()
    assert processes_naming(locked.house.home) == []
