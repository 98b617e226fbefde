"""Downloads: the hub's own client and ours, from a hub on this machine, with and without a long line between."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bench.report import ratios, spread, table
from tests import REPOSITORY

_FILE_BYTES = 1 << 30
_REPOSITORY, _NAME = "bench/toy", "toy.gguf"
_DELAY_SECONDS = 0.01
# About what the default of tcp_rmem lets be under way on one connection.
_WINDOW_BYTES = 2 << 20
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Way:
    """Who fetches, in a fresh process. Prints wall and CPU seconds of the work itself, without its imports."""

    name: str
    program: str


_MEASURED = """
import json, os, resource, sys, time
commit, folder = sys.argv[1:]
{imports}
began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
{work}
now = resource.getrusage(resource.RUSAGE_SELF)
cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
print(json.dumps({{"wall": time.perf_counter() - began, "cpu": cpu}}))
"""
_REAL = _MEASURED.format(
    imports="from huggingface_hub import hf_hub_download\nimport huggingface_hub.file_download",
    work=f"hf_hub_download({_REPOSITORY!r}, {_NAME!r}, revision=commit, local_dir=folder)",
)
_OURS = _MEASURED.format(
    imports="""from pathlib import Path
from orchestrator.schemas import HfSource
from orchestrator.store.fetch import fetch
from orchestrator.store.hub import remote_files
from orchestrator.store.progress import Silent""",
    work=f"""source = HfSource(hf={_REPOSITORY!r}, file={_NAME!r})
fetch(remote_files(source, commit)[0], Path(folder) / "models" / "partial" / "toy", Silent())""",
)
_WAYS = (Way("huggingface_hub, no digest", _REAL), Way("Slipstream, sha256 and fsync", _OURS))


def run(server: Path, rounds: int) -> None:
    """Print wall and CPU seconds of both, in turns, for each line. `server` is not used."""
    with tempfile.TemporaryDirectory(prefix="bench-download-") as folder:
        place = Path(folder)
        file = place / _NAME
        with file.open("wb") as out:
            for _ in range(_FILE_BYTES >> 20):
                out.write(os.urandom(1 << 20))
        _compare("loopback", (), (), place, file, rounds)
        with _long_line() as (what, prefix, relay):
            _compare(what, prefix, relay, place, file, rounds)


def _compare(what: str, prefix: Sequence[str], relay: Sequence[str], place: Path, file: Path, rounds: int) -> None:
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with _hub(prefix, file, relay) as (url, commit):
        for turn in range(rounds + 1):
            for way in _WAYS:
                found = _fetch(prefix, way, url, commit, place / "out")
                if turn:
                    wall[way.name].append(found["wall"])
                    cpu[way.name].append(found["cpu"])
    base = _WAYS[0].name
    rows = [
        [n, spread(wall[n], 2), ratios(wall[n], wall[base]), spread(cpu[n], 2), ratios(cpu[n], cpu[base])] for n in wall
    ]
    header = ["who", "wall, s", "ratio by round", "CPU, s", "ratio by round"]
    table(f"download of {_FILE_BYTES >> 20} MiB, {what}, {rounds} rounds", header, rows)


def _fetch(prefix: Sequence[str], way: Way, url: str, commit: str, out: Path) -> dict[str, float]:
    """One download into an empty folder, which is removed."""
    out.mkdir()
    home = {"HF_HOME": str(out / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment = os.environ | home | {"HF_ENDPOINT": url, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
    try:
        done = subprocess.run(
            [*prefix, sys.executable, "-c", way.program, commit, str(out / "files")],
            cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{way.name} failed: {done.stderr.strip()[-1000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found
    finally:
        shutil.rmtree(out)


@contextmanager
def _hub(prefix: Sequence[str], file: Path, relay: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Address and commit of a hub in a process of its own."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.support.hub", _REPOSITORY, str(file), *relay],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        url, commit = process.stdout.readline().split()
        yield url, commit
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()


@contextmanager
def _long_line() -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """20 ms there and back: netem in a network namespace where the kernel has it, else our relay."""
    name = f"bench-{uuid4().hex[:8]}"
    inside = ("ip", "netns", "exec", name)
    delay = f"{_DELAY_SECONDS * 1000:g}ms"
    with ExitStack() as stack:
        if _does("ip", "netns", "add", name):
            stack.callback(_does, "ip", "netns", "delete", name)
            if _does(*inside, "ip", "link", "set", "lo", "up") and _does(
                *inside, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", delay
            ):
                yield f"{2 * _DELAY_SECONDS * 1000:g} ms by netem", inside, ()
                return
        what = f"{2 * _DELAY_SECONDS * 1000:g} ms by a relay ({_WINDOW_BYTES >> 20} MiB under way a connection)"
        yield what, (), (str(_DELAY_SECONDS), str(_WINDOW_BYTES))


def _does(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
