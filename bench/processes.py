"""Processes under measurement: started, found, and what they have used."""

import os
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.support.orchestrator import pids
from tests.support.server import LISTENING

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STOP_SECONDS = 20.0


def cpu_seconds(root: int, without: Sequence[int] = ()) -> float:
    """CPU time of the living processes under `root`, itself included, in steps of 10 ms.

    `without` names roots whose trees do not count, such as servers behind a proxy.
    """
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, int] = {}
    for pid in pids():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(pid)
        used[pid] = int(fields[11]) + int(fields[12])
    left, ticks = [root], 0
    while left:
        pid = left.pop()
        if pid not in without:
            ticks += used.get(pid, 0)
            left += children[pid]
    return ticks / _TICKS_PER_SECOND


def children_of(pid: int) -> list[int]:
    """Its direct children."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def free_port() -> int:
    """A port that was free a moment ago, for programs that cannot say which one they got."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def spawn(argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own, its output in `log`."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "LITELLM_", "SLIPSTREAM_", "PYTHON"))
    }
    with log.open("wb") as sink:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=inherited | dict(environment or {}),
            start_new_session=True,
        )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """TERM, wait, KILL the group, reap."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOP_SECONDS)


@contextmanager
def running(
    argv: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    url: str = "",
    health: str = "/health",
    deadline_seconds: float = 60.0,
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A program that serves HTTP, and its address; yielded once `health` answers 200.

    Without `url`, the address is the one that it logs as llama-server does.
    """
    process = spawn(argv, log, environment)
    try:
        deadline = time.monotonic() + deadline_seconds
        while not (url and _is_healthy(url + health)):
            text = log.read_text(errors="replace")
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{Path(argv[0]).name} does not serve; its log ends:\n{text[-3000:]}")
            found = LISTENING.search(text)
            url = url or (found[1] if found else "")
            time.sleep(0.01)
        yield process, url
    finally:
        end(process)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
