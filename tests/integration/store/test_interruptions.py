"""Kills and full disks, side by side: what is left, and what the next download makes of it."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code
from orchestrator.store.http.limits import Limits
from tests.integration.store.clients import ONE, SEVERAL, Client, Outcome, ours, real
from tests.support import eventually
from tests.support.fetching import NAME, REPOSITORY, made
from tests.support.hub import Hub, Kind, running_hub

pytestmark = pytest.mark.integration

CONTENT = made(24_000_000)
RIGHT = Outcome(sha256=hashlib.sha256(CONTENT).hexdigest())
KILLS = 5
# Short enough that no run comes to the end: what was written but not recorded is written again.
STEP_BYTES = len(CONTENT) // (2 * KILLS)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        server.add(REPOSITORY, NAME, CONTENT)
        yield server


def killed(client: Client, after_bytes: int) -> None:
    """A download that is killed (SIGKILL) once `after_bytes` or more of this run lie on disk."""
    began = _written(client)
    process = client.start(client.hub.repositories[REPOSITORY].branches["main"])
    try:
        eventually(lambda: _written(client) >= began + after_bytes, "bytes lie on disk", 30)
    finally:
        process.kill()
        process.communicate()


def _written(client: Client) -> int:
    files = [path for path in client.folder.rglob("*") if path.name == "data" or path.name.endswith(".incomplete")]
    return sum(path.stat().st_size for path in files)


def _state(client: Client) -> Any:
    return json.loads((client.folder / "models" / "partial" / "key" / "state.json").read_text())


def check_claims(client: Client) -> None:
    """Whatever the state says is there, is there."""
    data = (client.folder / "models" / "partial" / "key" / "data").read_bytes()
    for start, stop in _state(client)["done"]:
        assert data[start:stop] == CONTENT[start:stop]


@pytest.mark.parametrize("limits", [ONE, SEVERAL], ids=["one connection", "several"])
def test_after_any_number_of_kills_ours_goes_on(hub: Hub, tmp_path: Path, limits: Limits) -> None:
    hub.bytes_per_second = 30_000_000 if limits is ONE else 8_000_000
    client = ours(hub, tmp_path, limits)
    for _ in range(KILLS):
        killed(client, STEP_BYTES)
        assert client.final_files() == []
        check_claims(client)
    there = sum(stop - start for start, stop in _state(client)["done"])
    assert there >= (KILLS - 1) * STEP_BYTES // 2
    if limits is SEVERAL:
        assert any(not (request.range or "-").endswith("-") for request in hub.asked("content")), "parts were asked for"
    hub.requests.clear()
    assert client.fetch() == RIGHT
    ranges = [request.range for request in hub.asked("content")]
    assert None not in ranges, "nothing was brought from the start again"
    if limits is ONE:
        assert len(ranges) == 1


def test_after_a_kill_the_other_begins_again(hub: Hub, tmp_path: Path) -> None:
    """huggingface_hub does not resume across processes since 1.18, and leaves what it had."""
    hub.bytes_per_second = 30_000_000
    client = real(hub, tmp_path)
    killed(client, STEP_BYTES)
    assert len(client.leftovers()) == 1 and client.final_files() == []
    assert client.fetch() == RIGHT
    assert [request.range for request in hub.asked("content")] == [None, None]
    assert len(client.leftovers()) == 1


def test_two_processes_bring_one_file_once(hub: Hub, tmp_path: Path) -> None:
    hub.bytes_per_second = 16_000_000
    for client in (ours(hub, tmp_path), real(hub, tmp_path)):
        hub.requests.clear()
        commit = hub.repositories[REPOSITORY].branches["main"]
        processes = [client.start(commit)]
        eventually(lambda: hub.asked("content"), "the first one is at work", 30)
        processes.append(client.start(commit))
        for process in processes:
            said, complaints = process.communicate(timeout=60)
            assert process.returncode == 0, complaints
            assert json.loads(said)["sha256"] == RIGHT.sha256
        assert len(hub.asked("content")) == 1


def test_who_waits_takes_over_when_the_other_is_killed(hub: Hub, tmp_path: Path) -> None:
    client = ours(hub, tmp_path)
    hub.fault(Kind.STALL, after_bytes=STEP_BYTES)
    commit = hub.repositories[REPOSITORY].branches["main"]
    first = client.start(commit)
    eventually(lambda: _written(client) >= STEP_BYTES, "the first one is at work", 30)
    second = client.start(commit)
    eventually(lambda: len(hub.asked("hub", path="/api/")) == 2, "the second one has looked the file up", 30)
    first.kill()
    first.communicate()
    said, complaints = second.communicate(timeout=60)
    assert second.returncode == 0, complaints
    assert json.loads(said)["sha256"] == RIGHT.sha256


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_too_small(hub: Hub, small_disk: Path) -> None:
    outcome = ours(hub, small_disk).fetch()
    assert outcome.error == Code.DISK_FULL and hub.asked("content") == []
    assert str(len(CONTENT)) in outcome.message and outcome.details is not None
    assert outcome.details["needed_bytes"] == len(CONTENT) > outcome.details["free_bytes"] > 0
    other = real(hub, small_disk)
    outcome = other.fetch()
    # It warns, tries all the same, and fails in the middle.
    assert outcome.error == "OSError" and "No space left" in outcome.message
    assert len(hub.asked("content")) == 1 and other.final_files() == [] and other.leftovers() == []


def test_a_disk_that_fills_up_on_the_way(hub: Hub, small_disk: Path) -> None:
    client = ours(hub, small_disk)
    hub.bytes_per_second = 60_000_000
    ballast = small_disk / "ballast"

    def fill() -> None:
        """Somebody else takes what was free when it was looked."""
        free = os.statvfs(small_disk)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - 6_000_000))

    subprocess.run(["mount", "-o", "remount,size=40m", small_disk], check=True)
    hub.fault(Kind.CUT, after_bytes=4_000_000)
    full = hub.fault(Kind.SHORT, after_bytes=0, then=fill)
    outcome = client.fetch()
    assert full.times == 0
    assert outcome.error == Code.DISK_FULL and outcome.details is not None
    assert outcome.details["needed_bytes"] <= len(CONTENT) - 4_000_000
    assert client.final_files() == [] and _state(client)["done"][0][1] >= 4_000_000
    ballast.unlink()
    hub.requests.clear()
    assert client.fetch() == RIGHT
    [asked] = hub.asked("content")
    assert asked.range is not None and int(asked.range[6:].rstrip("-")) >= 4_000_000
