"""The two clients that fetch side by side, each in a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.store.http.limits import Limits
from tests import REPOSITORY
from tests.support.fetching import NAME
from tests.support.fetching import REPOSITORY as REPO
from tests.support.hub import Hub

_TIMEOUT_SECONDS = 60.0
_OURS = """
import hashlib, json, sys
from pathlib import Path
from orchestrator.errors import SlipstreamError
from orchestrator.schemas import HfSource
from orchestrator.store.fetch import fetch
from orchestrator.store.hub import remote_files
from orchestrator.store.http.limits import Limits
from orchestrator.store.progress import Silent
asked = json.load(sys.stdin)
limits = Limits(**asked["limits"])
try:
    [remote] = remote_files(HfSource(hf=asked["repository"], file=asked["file"]), asked["revision"], limits)
    path = fetch(remote, Path(asked["folder"]) / "models" / "partial" / "key", Silent(), limits).path
    said = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
except SlipstreamError as e:
    said = {"error": str(e.code), "message": f"{e.message} ({e.hint})", "details": e.details}
print(json.dumps(said))
"""
_REAL = """
import hashlib, json, sys
from pathlib import Path
from huggingface_hub import hf_hub_download
asked = json.load(sys.stdin)
try:
    path = hf_hub_download(
        asked["repository"], asked["file"], revision=asked["revision"], local_dir=asked["folder"] + "/local"
    )
    said = {"sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
except Exception as e:
    said = {"error": type(e).__name__, "message": str(e)}
print(json.dumps(said))
"""
ONE = Limits(
    connect_seconds=5.0, stall_seconds=1.0, retries=3, backoff_seconds=0.01, longest_backoff_seconds=0.05,
    longest_wait_seconds=5.0, record_seconds=0.02, connections=1,
)  # fmt: skip


SEVERAL = replace(ONE, connections=4, segment_bytes=1 << 20, measure_seconds=0.05, worth_seconds=0.1)


@dataclass(frozen=True)
class Outcome:
    """How a download ended: with a digest, or with an error (our code, or the class that the library raised)."""

    sha256: str | None = None
    error: str | None = None
    message: str = ""
    details: dict[str, Any] | None = None


@dataclass(frozen=True)
class Client:
    """Fetches the toy from a hub into `folder`."""

    name: str
    program: str
    hub: Hub
    folder: Path
    limits: Limits = ONE

    def start(self, revision: str = "main", file: str = NAME, **environment: str) -> "subprocess.Popen[str]":
        """Begin a download in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-c", self.program],
            cwd=REPOSITORY, env=self._environment() | environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        asked = {"repository": REPO, "file": file, "revision": revision, "folder": str(self.folder)}
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked | {"limits": asdict(self.limits)}))
        process.stdin.close()
        process.stdin = None
        return process

    def fetch(self, revision: str | None = None, file: str = NAME, **environment: str) -> Outcome:
        """Download the toy at a revision, else at the head of `main`."""
        commit = self.hub.repositories[REPO].branches["main"] if REPO in self.hub.repositories else "main"
        process = self.start(revision or commit, file, **environment)
        said, complaints = process.communicate(timeout=_TIMEOUT_SECONDS)
        assert process.returncode == 0, complaints
        return Outcome(**json.loads(said.splitlines()[-1]))

    def final_files(self) -> list[Path]:
        """What lies under a final name. Ours has none: the store names what was returned, and only that."""
        return [path for path in self.folder.rglob(NAME) if path.is_file()]

    def leftovers(self) -> list[Path]:
        """Unfinished files of the library."""
        return sorted(self.folder.rglob("*.incomplete"))

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SLIPSTREAM_"))}
        return kept | {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "5",
            "NO_PROXY": "*",
        }


def ours(hub: Hub, folder: Path, limits: Limits = ONE) -> Client:
    """Slipstream's."""
    return Client("ours", _OURS, hub, folder / "ours", limits)


def real(hub: Hub, folder: Path) -> Client:
    """huggingface_hub's own."""
    return Client("real", _REAL, hub, folder / "real")
