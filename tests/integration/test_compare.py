"""`slipstream bench-traffic MODEL --compare` on a real orchestrator: measured, kept, shown, stale after a change."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ToyBox
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration
DEADLINE_SECONDS = 60.0
BENCH = "/api/models/toy/bench"
GAUGES = [f"slipstream_bench_{name}" for name in ("speedup_ratio", "break_even_tokens", "timestamp_seconds")]


def make(home: Path, binary: Path, toys: ToyBox) -> Orchestrator:
    made = Orchestrator(home, binary, {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
    server: dict[str, Any] = {"ctx_size": 8192, "parallel": 1, "threads": 1, "spec_draft_threads": 1}
    toy = toys.mtp(noise=0.3, miss_rank=3)
    made.write_model("toy", toy.path, speculation={"type": "draft-mtp", "n_max": 3}, server=server)
    return made


@pytest.fixture
def house(patched_server: Path, toys: ToyBox, tmp_path: Path) -> Iterator[Orchestrator]:
    with running_orchestrator(make(tmp_path, patched_server, toys)) as made:
        yield made


def compare(house: Orchestrator, *arguments: str) -> "subprocess.CompletedProcess[str]":
    dropped = ("SLIPSTREAM_", "FORCE_COLOR", "COLUMNS", "TTY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    command = [sys.executable, "-m", "orchestrator.cli", "bench-traffic", "toy", "--compare", *arguments]
    return subprocess.run(
        command,
        env=kept | {"SLIPSTREAM_URL": house.base_url},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def gauges(house: Orchestrator) -> list[float | None]:
    return [house.metric(name, model="toy", spec_type="draft-mtp") for name in GAUGES]


def result(house: Orchestrator) -> Any:
    return house.http.get(BENCH).raise_for_status().json()["result"]


def set_flags(house: Orchestrator, **flags: Any) -> None:
    house.http.put("/api/servers/toy", json={"flags": flags}).raise_for_status()


def test_a_comparison_is_kept_and_shown_until_the_server_runs_otherwise(house: Orchestrator) -> None:
    # Nothing runs yet: the first request loads the model.
    done = compare(house, "--rounds", "2", "--mix", "chat,short", "--max-tokens", "40", "--json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told = json.loads(done.stdout)
    kept = result(house)
    measured = [one["drafted"] for one in told["measured"]]
    assert {name: told[name] for name in kept if name in told} == {name: kept[name] for name in kept if name in told}
    assert told["is_kept"] and not kept["is_stale"] and kept["spec_type"] == "draft-mtp"
    drafted, accepted = (sum(one[name] for one in measured) for name in ("draft_tokens", "accepted_tokens"))
    assert 0 < kept["acceptance_ratio"] == accepted / drafted < 1
    assert 1 < kept["mean_acceptance_length"] <= 4 and kept["break_even_tokens"] > 0
    assert gauges(house) == [kept["speedup_ratio"], kept["break_even_tokens"], kept["at"]]

    set_flags(house, **{"spec-draft-n-max": 2})
    assert result(house)["is_stale"] and gauges(house) == [None, None, None]
    set_flags(house)
    assert not result(house)["is_stale"] and gauges(house)[0] == kept["speedup_ratio"]

    house.send(signal.SIGKILL)
    house.wait()
    house.start()
    assert result(house) == kept and gauges(house)[0] == kept["speedup_ratio"]
    house.start_model("toy")
    assert result(house) == kept
    assert house.http.delete(BENCH).status_code == 204
    assert result(house) is None and gauges(house) == [None, None, None]


def test_what_cannot_be_is_refused_with_what_is_wrong(house: Orchestrator) -> None:
    half = {"answers": 1, "predicted_tokens": 20, "predicted_seconds": 1.0}
    wrong = half | {"draft_tokens": 3, "accepted_tokens": 4, "verification_steps": 1}
    body = {"launch": "0" * 16, "rounds": [{"plain": half, "drafted": wrong}]}
    refused = house.http.put(BENCH, json=body)
    assert refused.status_code == 400 and "4 tokens were accepted of 3 drafted ones" in refused.json()["detail"]
    body["rounds"] = [{"plain": half, "drafted": half}]
    assert house.http.put(BENCH, json=body).json()["code"] == "server_stopped"
    house.start_model("toy")
    assert house.http.put(BENCH, json=body).json()["code"] == "conflict"
    assert result(house) is None


def test_an_unpatched_server_is_told(unpatched_server: Path, toys: ToyBox, tmp_path: Path) -> None:
    with running_orchestrator(make(tmp_path, unpatched_server, toys)) as house:
        done = compare(house, "--mix", "short", "--no-keep")
        assert (done.returncode, done.stdout) == (1, "")
        assert "the llama-server of 'toy' is not patched" in done.stderr
