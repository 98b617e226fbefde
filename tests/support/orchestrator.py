"""A real orchestrator process with a home of its own, and a look at the servers it starts."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.polling import eventually

Json = dict[str, Any]

START_DEADLINE_SECONDS = 30.0
STOP_DEADLINE_SECONDS = 30.0
CLIENT_TIMEOUT_SECONDS = 60.0
_ADDRESS = re.compile(r"Uvicorn running on (http://\S+)")
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class ChildServer:
    """A llama-server of the orchestrator, seen from outside: its process, its address and its key."""

    pid: int
    url: str
    api_key: str

    def get(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.api_key}"}
        return httpx.get(self.url + path, headers=headers, timeout=CLIENT_TIMEOUT_SECONDS, trust_env=False)

    def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in self.get("/slots").raise_for_status().json())


@dataclass
class Orchestrator:
    """`python -m orchestrator.app` on a free port; everything it writes lies under `home`."""

    home: Path
    binary: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    base_url: str = ""
    http: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False))

    @property
    def models_dir(self) -> Path:
        return self.home / "models"

    @property
    def log(self) -> Path:
        return self.home / "orchestrator.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def write_model(self, name: str, model: Path | None = None, **fields: Any) -> None:
        """A model file of type `path`; the GGUF is linked under `home`, so that argv leads back to this test."""
        self.models_dir.mkdir(parents=True, exist_ok=True)
        if model is not None:
            fields = {"source": {"path": self.link(model)}} | fields
        (self.models_dir / f"{name}.yaml").write_text(json.dumps({"name": name} | fields))

    def link(self, gguf: Path) -> str:
        """A link to `gguf` in the folder of the model files, relative to it."""
        link = self.models_dir / gguf.name
        if not link.is_symlink():
            self.models_dir.mkdir(parents=True, exist_ok=True)
            link.symlink_to(gguf)
        return gguf.name

    def launch(self) -> None:
        """Start the process and come back at once."""
        self.models_dir.mkdir(parents=True, exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLIPSTREAM_", "LLAMA_"))}
        settings = {
            "PORT": "0",
            "MODELS_DIR": str(self.models_dir),
            "STATE_DIR": str(self.home / "state"),
            "CACHE": str(self.home / "cache"),
            "LLAMA_SERVER": str(self.binary),
            **self.settings,
        }
        env = inherited | {f"SLIPSTREAM_{k}": v for k, v in settings.items()} | dict(self.environment)
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.app"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                cwd=self.home,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start and wait until it takes requests."""
        self.launch()
        self.base_url = eventually(self._address, "the orchestrator listens", START_DEADLINE_SECONDS)
        self.http.close()
        self.http = httpx.Client(base_url=self.base_url, timeout=CLIENT_TIMEOUT_SECONDS, trust_env=False)

    def _address(self) -> str | None:
        self.require_alive()
        found = _ADDRESS.search(self.log_text())
        return found[1] if found else None

    def require_alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"the orchestrator ended by itself; its log:\n{self.log_text()[-4000:]}")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, deadline_seconds: float = STOP_DEADLINE_SECONDS) -> int:
        """Exit status; subprocess.TimeoutExpired when the process is still there at the deadline."""
        assert self.process is not None
        return self.process.wait(deadline_seconds)

    def close(self) -> None:
        self.http.close()
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()
        for pid in self.leftovers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[int]:
        """Processes other than the orchestrator whose arguments name something under `home`."""
        own = {os.getpid(), self.process.pid if self.process else 0}
        return [pid for pid in processes_naming(self.home) if pid not in own]

    def view(self, model: str) -> Json:
        return dict(self.http.get(f"/api/servers/{model}").raise_for_status().json())

    def command(self, model: str, verb: str) -> httpx.Response:
        return self.http.post(f"/api/servers/{model}/{verb}")

    def start_model(self, model: str) -> ChildServer:
        self.command(model, "start").raise_for_status()
        return self.child(model)

    def child(self, model: str) -> ChildServer:
        """The running server of a model; its address from its log, its key from its environment."""
        pid = self.view(model)["pid"]
        assert pid is not None, f"{model} has no process: {self.view(model)}"
        found = _LISTENING.findall(self.server_log(model))
        assert found, f"{model} does not listen: {self.view(model)}"
        return ChildServer(pid, found[-1], environment_of(pid)["LLAMA_API_KEY"])

    def server_log(self, model: str, tail: int = 10_000) -> str:
        params: dict[str, str | int] = {"follow": "false", "tail": tail}
        response = self.http.get(f"/api/servers/{model}/logs", params=params).raise_for_status()
        return "\n".join(line[6:] for line in response.text.splitlines() if line.startswith("data: "))

    def chat(self, model: str, text: str = "hello", **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample of `/metrics` with at least these labels; None where there is none."""
        from prometheus_client.parser import text_string_to_metric_families

        page = self.http.get("/metrics").raise_for_status().text
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None


@contextmanager
def running_orchestrator(orchestrator: Orchestrator) -> Iterator[Orchestrator]:
    """Start it, yield it, end it with everything it started."""
    try:
        orchestrator.start()
        yield orchestrator
    finally:
        orchestrator.close()


def pids() -> list[int]:
    """Every process of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def processes_naming(path: Path) -> list[int]:
    """Living processes that have this path in an argument."""
    return [pid for pid in pids() if any(str(path) in argument for argument in argv_of(pid))]


def argv_of(pid: int) -> list[str]:
    """Arguments of a process; empty when it is gone (also as a zombie)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def environment_of(pid: int) -> dict[str, str]:
    """Environment a process was started with."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)


def is_gone(pid: int) -> bool:
    """Whether nothing of the process runs: it does not exist, or is a zombie that nobody has waited for.

    The first thread of a dying process is a zombie while others still hold its sockets, so threads are counted too.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX" and threads <= 1


def group_members(pgid: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for pid in pids():
        with suppress(OSError):
            if os.getpgid(pid) == pgid and not is_gone(pid):
                found.append(pid)
    return found
