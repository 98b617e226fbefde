"""The `slipstream` command against a real orchestrator with a real llama-server."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gguf.known import SPEC_TYPES
from tests import FAKE_SERVER
from tests.support import ToyBox, eventually
from tests.support.orchestrator import Orchestrator, argv_of, is_gone, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration
SCRIPT = Path(sys.executable).with_name("slipstream")
DEADLINE_SECONDS = 60.0
LISTENING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
STATISTICS = re.compile(
    r"^↳ (\d+) rounds, (\d+) drafted, (\d+) accepted \((\S+) %\), \S+ tok/round, \S+ tok/s(.*)$", re.M
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator.cli", *arguments]


def clean_environment(**extra: str) -> dict[str, str]:
    dropped = ("SLIPSTREAM_", "FORCE_COLOR", "COLUMNS", "TTY_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)} | extra


def slipstream(orchestrator: Orchestrator, *arguments: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    env = clean_environment(SLIPSTREAM_URL=orchestrator.base_url)
    done = subprocess.run(
        command(*arguments), env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def as_json(orchestrator: Orchestrator, *arguments: str) -> Any:
    return json.loads(slipstream(orchestrator, *arguments, "--json").stdout)


@pytest.fixture(scope="module")
def orchestrator(
    patched_server: Path, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Orchestrator]:
    made = Orchestrator(tmp_path_factory.mktemp("cli"), patched_server)
    # The drafter drafts the target's second choice: accepted at relaxed_top_n 2, refused without.
    relaxed = {"type": "draft-mtp", "n_max": 2, "relaxed_top_n": 2}
    server = {"ctx_size": 2048, "parallel": 2, "threads": 1}
    made.write_model("toy", toys.mtp(draft_rank=2).path, speculation=relaxed, server=server, aliases=["t"])
    made.write_model("plain", toys.pair().path, server=server)
    with running_orchestrator(made):
        yield made


def chat(orchestrator: Orchestrator, *options: str) -> str:
    base = ("chat", "toy", "hello", "--temperature", "0", "--max-tokens", "40")
    return slipstream(orchestrator, *base, *options).stdout


def slot_sum(orchestrator: Orchestrator, field: str) -> float:
    (server,) = as_json(orchestrator, "status", "toy")["servers"]
    return float(sum(slot[field] for slot in server["slots"]))


def test_a_model_is_started_asked_watched_and_stopped(orchestrator: Orchestrator) -> None:
    assert [m["spec"]["name"] for m in as_json(orchestrator, "models")["models"]] == ["plain", "toy"]
    started = slipstream(orchestrator, "start", "t")
    assert started.stdout.startswith("toy is ready, speculation draft-mtp; ")
    before = slot_sum(orchestrator, "draft_tokens")
    found = STATISTICS.search(chat(orchestrator))
    assert found is not None
    rounds, drafted, accepted = (int(found[i]) for i in (1, 2, 3))
    assert 0 < accepted <= drafted <= 2 * rounds
    assert float(found[4]) == round(100 * accepted / drafted, 1)
    assert found[5] == f", {accepted} relaxed"
    assert slot_sum(orchestrator, "draft_tokens") == before + drafted
    rows = [line.split() for line in slipstream(orchestrator, "status").stdout.splitlines()]
    first = [["plain", "stopped", "0", "0", "-", "-"], ["toy", "ready", "0", "0", "draft-mtp", "0"]]
    assert [row[:6] for row in rows[1:3]] == first
    assert len(rows) == 4, "a row for each of two slots"
    assert "listening" in slipstream(orchestrator, "logs", "toy", "--tail", "10000").stdout
    assert slipstream(orchestrator, "stop", "toy").stdout == "toy is stopped\n"


def test_limits_of_a_request_reach_the_server(orchestrator: Orchestrator) -> None:
    strict = STATISTICS.search(chat(orchestrator, "--relaxed-top-n", "0"))
    assert strict is not None and (strict[3], strict[5]) == ("0", "")
    assert int(strict[2]) > 0
    assert "↳ no drafts, " in chat(orchestrator, "--n-max", "0")


def test_chat_as_json_gives_the_servers_own_timings(orchestrator: Orchestrator) -> None:
    lines = [json.loads(line) for line in chat(orchestrator, "--json").splitlines()]
    deltas, end = lines[:-1], lines[-1]
    assert {line["type"] for line in deltas} == {"delta"}
    assert end["type"] == "end" and end["finish_reason"] == "length"
    assert end["timings"]["predicted_n"] == 40
    assert end["timings"]["draft_n_relaxed"] == end["timings"]["draft_n_accepted"] > 0


def test_preflight_knows_the_speculative_types_of_the_server(patched_server: Path) -> None:
    told = subprocess.run([patched_server, "--help"], capture_output=True, text=True, timeout=DEADLINE_SECONDS).stdout
    found = re.search(r"--spec-type ([a-z0-9,-]+)", told)
    assert found is not None and sorted(found[1].split(",")) == sorted(SPEC_TYPES)


def test_swap_plans_then_does(orchestrator: Orchestrator) -> None:
    slipstream(orchestrator, "start", "toy")
    plan = as_json(orchestrator, "swap", "plain", "--flag", "ctx-size=1024", "--dry-run")
    assert [(a["do"], a["model"]) for a in plan["actions"]] == [("start", "plain"), ("stop", "toy")]
    assert orchestrator.view("toy")["state"] == "ready", "a dry run touches nothing"
    view = as_json(orchestrator, "swap", "plain", "--flag", "ctx-size=1024")
    assert (view["state"], view["flags"]) == ("ready", {"ctx-size": 1024})
    assert orchestrator.view("toy")["state"] == "stopped"
    assert as_json(orchestrator, "start", "plain", "--no-flags")["flags"] == {}


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("ctx-sizes=1", ["--ctx-sizes", "--ctx-size"]),
        ("draft-max=4", ["--draft-max", "--spec-draft-n-max"]),
        ("log-file=/tmp/x", ["--log-file", "files on this machine"]),
    ],
)
def test_a_refused_flag_is_named(orchestrator: Orchestrator, flag: str, words: list[str]) -> None:
    slipstream(orchestrator, "start", "toy")
    pid = orchestrator.view("toy")["pid"]
    refused = slipstream(orchestrator, "start", "toy", "--flag", flag, status=1)
    assert refused.stdout == ""
    assert all(word in refused.stderr for word in words), refused.stderr
    assert orchestrator.view("toy")["pid"] == pid


def test_following_a_log_goes_on_until_ctrl_c(orchestrator: Orchestrator) -> None:
    slipstream(orchestrator, "start", "toy")
    env = clean_environment(SLIPSTREAM_URL=orchestrator.base_url, PYTHONUNBUFFERED="1")
    follower = subprocess.Popen(command("logs", "toy", "-n", "1", "-f"), env=env, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    with follower.stdout:
        assert follower.stdout.readline()
        chat(orchestrator)
        assert follower.stdout.readline(), "a line that came after the follower"
        follower.send_signal(signal.SIGINT)
        follower.stdout.read()
    assert follower.wait(DEADLINE_SECONDS) == 0


def test_an_unknown_model_is_an_error_that_names_the_known(orchestrator: Orchestrator) -> None:
    for arguments in (("start", "nope"), ("logs", "nope"), ("chat", "nope", "hi"), ("swap", "nope")):
        done = slipstream(orchestrator, *arguments, status=1)
        assert "'nope'" in done.stderr and "plain, toy" in done.stderr, arguments


def test_a_server_that_dies_is_told_with_its_last_lines(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path, FAKE_SERVER)
    script = tmp_path / "dies.gguf"
    write_script(script, {"lines": 3, "complaint": "error: bad magic", "exit_in_load": 7})
    orchestrator.write_model("dies", script)
    with running_orchestrator(orchestrator):
        failed = slipstream(orchestrator, "start", "dies", status=1)
        status = slipstream(orchestrator, "status")
    assert "status 7" in failed.stderr and "error: bad magic" in failed.stderr
    assert "  line 2\n" in failed.stderr
    assert status.stdout.splitlines()[1].split()[:2] == ["dies", "failed"]
    assert "bad magic" in status.stderr


def test_serve_becomes_the_orchestrator(patched_server: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "orchestrator.py").write_text("raise SystemExit('a file of the current folder was imported')")
    options = ("--port", "0", "--models-dir", "models", "--state-dir", "state", "--llama-server", str(patched_server))
    log = tmp_path / "log"
    with log.open("wb") as sink:
        env = clean_environment()
        serving = subprocess.Popen(
            [str(SCRIPT), "serve", *options, "--json"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=sink
        )
    try:
        assert serving.stdout is not None
        with serving.stdout:
            assert json.loads(serving.stdout.readline()) == {"pid": serving.pid}
            found = eventually(
                lambda: LISTENING.search(log.read_text()),
                "it listens",
                DEADLINE_SECONDS,
            )
            assert argv_of(serving.pid)[-1] == "orchestrator.app"
            models = subprocess.run(command("models", "--url", found[1]), env=env, capture_output=True, text=True)
            assert (models.returncode, models.stdout) == (0, "")
            serving.send_signal(signal.SIGTERM)
            assert serving.stdout.read() == b""
        eventually(lambda: is_gone(serving.pid), "TERM ends it", DEADLINE_SECONDS)
        assert (tmp_path / "state" / "slipstream.db").exists()
    finally:
        with suppress(ProcessLookupError):
            serving.kill()
        serving.wait()
