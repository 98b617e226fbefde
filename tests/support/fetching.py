"""Fetches from the tests' hub: what they need to know, and time-outs short enough to wait for."""

import random
from pathlib import Path

import pytest

from orchestrator.store.http.limits import Limits
from orchestrator.store.remote import RemoteFile
from tests.support.hub import Hub

REPOSITORY, NAME = "acme/toy", "toy.gguf"
# No wait is longer than a test may take, and no retry waits for its turn.
QUICK = Limits(
    connect_seconds=5.0, stall_seconds=0.4, retries=3, backoff_seconds=0.002, longest_backoff_seconds=0.01,
    longest_wait_seconds=5.0, record_seconds=0.02,
)  # fmt: skip


def made(size_bytes: int, seed: int = 1) -> bytes:
    """Bytes that no part of which looks like another."""
    return random.Random(seed).randbytes(size_bytes)


def point_at(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this hub the only one, and let nothing of this machine's environment in."""
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "SLIPSTREAM_HF_TOKEN_FILE", "HF_HUB_OFFLINE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("NO_PROXY", "*")


def remote(hub: Hub, repository: str = REPOSITORY, path: str = NAME, *, revision: str = "main") -> RemoteFile:
    """A file of the hub, as `hub.remote_files` would tell of it."""
    commit = hub.repositories[repository].resolve(revision)
    file = hub.file(repository, path, revision)
    return RemoteFile(
        url=f"{hub.url}/{repository}/resolve/{commit}/{path}",
        name=path.rpartition("/")[2],
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        token_host=hub.url,
        path=path,
    )


def partial_of(folder: Path, key: str = "key") -> Path:
    """A partial folder where a store has them."""
    return folder / "models" / "partial" / key
