"""`make demo` without make: the script, a real model from PyPI, and no process left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests import REPOSITORY
from tests.support import eventually
from tests.support.orchestrator import argv_of, environment_of, is_gone, pids

pytestmark = pytest.mark.integration
DEMO = REPOSITORY / "scripts" / "demo"
# The first run on a machine fetches the model, 98 MB.
DEADLINE_SECONDS = 300.0
END_SECONDS = 30.0
STATISTICS = re.compile(
    r"^↳ (\d+) rounds, (\d+) drafted, (\d+) accepted \(\S+ %\), \S+ tok/round, \S+ tok/s$", re.MULTILINE
)


@dataclass
class Demo:
    """A running demo, seen from outside."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text()

    def expect(self, text: str) -> None:
        def shown() -> bool:
            ended = self.process.poll()
            assert ended is None or text in self.text(), f"the demo ended with {ended}:\n{self.text()}"
            return text in self.text()

        eventually(shown, f"the demo prints {text!r}", DEADLINE_SECONDS)

    def descendants(self) -> set[int]:
        """Every process below the demo, with those that have left its session or process group."""
        parents = {pid: parent for pid in pids() if (parent := _parent(pid))}
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def demo(server: Path, folder: Path, *arguments: str, port: int | None = None, **settings: str) -> Iterator[Demo]:
    port = free_port() if port is None else port
    env = {k: v for k, v in os.environ.items() if k == "SLIPSTREAM_CACHE" or not k.startswith("SLIPSTREAM_")}
    env |= {"PORT": str(port), "SLIPSTREAM_LLAMA_SERVER": str(server), "TMPDIR": str(folder), **settings}
    log = folder / "demo.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, str(DEMO), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
        )
    running = Demo(process, port, log)
    try:
        yield running
    finally:
        left = running.descendants()
        process.kill()
        process.wait()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_once_asks_one_question_and_ends(patched_server: Path, tmp_path: Path) -> None:
    """Settings of the machine's owner do not reach it: with that key file it could not be asked at all."""
    with demo(patched_server, tmp_path, "--once", SLIPSTREAM_ADMIN_KEYS_FILE="/does/not/exist") as d:
        assert d.process.wait(DEADLINE_SECONDS) == 0, d.text()
        text = d.text()
        assert d.descendants() == set()
    question, answer = text.split("> Repeat this list:\n")[1].split("\n\n", 1)
    assert answer.startswith(question), "the answer is the list of the question"
    found = STATISTICS.search(answer)
    assert found is not None, text
    rounds, drafted, accepted = map(int, found.groups())
    assert rounds > 0 and drafted >= accepted > drafted / 2
    assert not list(tmp_path.glob("slipstream-*")), "its state is gone"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_it_goes_on_serving_and_leaves_nothing(
    patched_server: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with demo(patched_server, tmp_path) as d:
        d.expect("Serving until Ctrl-C")
        for address in (f"{d.url}/v1", f"{d.url}/metrics"):
            assert address in d.text()
        body = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx.post(f"{d.url}/v1/chat/completions", json=body, timeout=DEADLINE_SECONDS, trust_env=False)
        assert answer.status_code == 200
        left = d.descendants()
        servers = [pid for pid in left if argv_of(pid)[0] == str(patched_server)]
        assert len(servers) == 1 and "LLAMA_API_KEY" in environment_of(servers[0])
        d.process.send_signal(number)
        assert d.process.wait(END_SECONDS) == status
        eventually(lambda: all(map(is_gone, left)), f"nothing of {left} is left", END_SECONDS)


def test_term_during_the_pull_leaves_nothing(patched_server: Path, tmp_path: Path) -> None:
    with demo(patched_server, tmp_path) as d:
        d.expect("slipstream pull")
        left = d.descendants()
        assert left
        d.process.terminate()
        assert d.process.wait(END_SECONDS) == 143
        eventually(lambda: all(map(is_gone, left)), f"nothing of {left} is left", END_SECONDS)


def test_a_busy_port_is_named_with_the_way_out(patched_server: Path, tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        began = time.monotonic()
        with demo(patched_server, tmp_path, "--once", port=port) as d:
            assert d.process.wait(END_SECONDS) == 1
            assert f"port {port} of 127.0.0.1" in d.text()
            assert "make demo PORT=" in d.text()
            assert "==>" not in d.text(), "nothing was begun"
        assert time.monotonic() - began < END_SECONDS


@pytest.mark.parametrize("port", ["0", "http", "65536"])
def test_a_port_that_is_none_is_refused(patched_server: Path, tmp_path: Path, port: str) -> None:
    with demo(patched_server, tmp_path, PORT=port) as d:
        assert d.process.wait(END_SECONDS) == 1
        assert f"PORT={port} is no port" in d.text()


def test_a_server_that_is_none_is_told(tmp_path: Path) -> None:
    with demo(Path("/bin/true"), tmp_path, "--once") as d:
        assert d.process.wait(END_SECONDS) == 1
        assert "did not start" in d.text()
        assert "not a llama-server" in d.text(), d.text()
