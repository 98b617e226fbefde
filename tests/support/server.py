"""A real llama-server for the length of a ``with`` block."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.client import LlamaClient
from tests.support.polling import eventually

START_DEADLINE_SECONDS = 30.0
STOP_DEADLINE_SECONDS = 5.0
TAIL_LINES = 30
LISTENING = re.compile(r"listening on (http://\S+)")

# One thread: a toy gains nothing from two, and waiting for each other costs far more on a busy machine.
BASE_FLAGS = (
    *("--host", "127.0.0.1", "--port", "0", "--offline", "--metrics", "--ctx-size", "4096"),
    *("--threads", "1", "--spec-draft-threads", "1"),
)


@dataclass(frozen=True)
class LlamaServer:
    """A started server: its client, its log file and its process."""

    client: LlamaClient
    log: Path
    process: subprocess.Popen[bytes]

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def relaxed_lines(self) -> list[str]:
        """The lines that RELAXED_VERIFY_LOG=1 makes the patched server write, one a decision."""
        return [line for line in self.log_text().splitlines() if "RELAXED_VERIFY" in line]

    def tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-TAIL_LINES:])


@contextmanager
def running_server(
    binary: Path, model: Path, *flags: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[LlamaServer]:
    """Start ``binary`` on a free port, yield it once /health answers 200, end it with all its children.

    Later flags win, so ``flags`` may override the base flags. Raises RuntimeError with the end of the log if
    the server dies before it is healthy, or has died by itself when the block ends well.
    """
    argv = [str(binary), *BASE_FLAGS, "--model", str(model), *flags]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=_hermetic(environment),
            process_group=0,
        )
    server: LlamaServer | None = None
    try:
        url = eventually(lambda: _address(process, log), f"{binary.name} listens", START_DEADLINE_SECONDS)
        server = LlamaServer(LlamaClient(url), log, process)
        eventually(lambda: _healthy(url, process, log), f"{binary.name} is healthy", START_DEADLINE_SECONDS)
        yield server
        _require_alive(process, log)
    finally:
        if server is not None:
            server.client.close()
        _end(process)


def _hermetic(extra: Mapping[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "RELAXED_"))}
    return {**inherited, **(extra or {})}


def _address(process: subprocess.Popen[bytes], log: Path) -> str | None:
    _require_alive(process, log)
    found = LISTENING.search(log.read_text(errors="replace"))
    return found[1] if found else None


def _healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    _require_alive(process, log)
    try:
        return httpx.get(f"{url}/health", timeout=1.0).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _require_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise RuntimeError(f"llama-server ended by itself with status {process.returncode}; its log ends:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    # The group, not the process: nothing that the server started may outlive the test.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_DEADLINE_SECONDS)
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_DEADLINE_SECONDS)
