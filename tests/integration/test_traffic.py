"""`slipstream bench-traffic` against a real orchestrator and a real llama-server."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ToyBox, eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration
DEADLINE_SECONDS = 60.0
SLOT_COUNTERS = {
    "tokens": "slipstream_slot_predicted_tokens_total",
    "draft_tokens": "slipstream_slot_draft_tokens_total",
    "accepted_tokens": "slipstream_slot_accepted_tokens_total",
    "verification_steps": "slipstream_slot_verification_steps_total",
}


@pytest.fixture(scope="module")
def house(patched_server: Path, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    made = Orchestrator(tmp_path_factory.mktemp("traffic"), patched_server, {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
    server: dict[str, Any] = {"ctx_size": 16384, "parallel": 2, "threads": 1, "spec_draft_threads": 1}
    made.write_model("toy", toys.mtp().path, speculation={"type": "draft-mtp", "n_max": 3}, server=server)
    with running_orchestrator(made):
        made.start_model("toy")
        yield made


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator.cli", "bench-traffic", *arguments]


def environment(house: Orchestrator) -> dict[str, str]:
    dropped = ("SLIPSTREAM_", "FORCE_COLOR", "COLUMNS", "TTY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"SLIPSTREAM_URL": house.base_url}


def start(house: Orchestrator, *arguments: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), env=environment(house), stdout=pipe, stderr=pipe, text=True)


def totals(house: Orchestrator) -> dict[str, float]:
    """Of both slots."""
    return {
        name: sum(house.metric(series, model="toy", slot=slot) or 0.0 for slot in "01")
        for name, series in SLOT_COUNTERS.items()
    }


def test_its_figures_are_what_the_servers_counted(house: Orchestrator) -> None:
    before = totals(house)
    process = start(house, "--requests", "12", "--concurrency", "3", "--max-tokens", "40", "--json")
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, err) == (0, ""), err
    found = json.loads(out)
    toy = found["models"]["toy"]
    assert (toy["requests"], toy["failed"]) == (12, 0)
    grown = {name: value - before[name] for name, value in totals(house).items()}
    assert {name: toy[name] for name in grown} == grown
    assert 0 < toy["acceptance_ratio"] <= 1 < toy["mean_acceptance_length_tokens"]
    assert 0 < toy["first_token_seconds"]["p50"] <= toy["first_token_seconds"]["p99"]
    assert sum(kind["requests"] for kind in found["kinds"].values()) == 12


def test_ctrl_c_cuts_off_what_runs_and_ends_with_the_tables(house: Orchestrator) -> None:
    process = start(house, "toy", "--mix", "long", "--stream", "0.5", "--concurrency", "4", "--seconds", "600")
    done = house.metric("slipstream_requests_total", model="toy", outcome="ok") or 0.0
    eventually(
        lambda: (house.metric("slipstream_requests_total", model="toy", outcome="ok") or 0.0) >= done + 2,
        "two answers have ended",
        DEADLINE_SECONDS,
    )
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert time.monotonic() - began < 5, "it does not wait for answers"
    assert process.returncode == 0, err
    [row] = [line.split() for line in out.splitlines() if line.startswith("toy")]
    assert int(row[1]) >= 2 and row[2] == "0"
    assert "were cut off before their end" in err
    eventually(lambda: house.child("toy").busy_slots() == 0, "the server is at rest")


def test_a_terminal_gets_a_live_line(house: Orchestrator) -> None:
    leader, follower = pty.openpty()
    arguments = ("toy", "--seconds", "1", "--mix", "short")
    process = subprocess.Popen(command(*arguments), env=environment(house), stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    seen = b""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline and select.select([leader], [], [], DEADLINE_SECONDS)[0]:
        try:
            seen += os.read(leader, 65536)
        except OSError:
            break
    os.close(leader)
    out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, seen
    assert b"running, 0 failed; " in seen and b" tok/s, TTFT " in seen
    assert out.startswith(b"MODEL")


def test_a_model_that_nobody_knows_fails_every_request(house: Orchestrator) -> None:
    process = start(house, "nobody", "--requests", "2")
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert "nobody: 2 x model_not_found: " in err and out.startswith("MODEL")
