"""Images of a test's own in a real registry, with attestations, and `slipstream images verify` of them."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llamacpp.pin import load_pin, load_series
from tests import REPOSITORY
from tests.support.attested import Registry, attesting_registry
from tests.support.cosign import Cosign, make_cosign
from tests.support.docker import MAIN, build_variant

VERIFY_SECONDS = 120
SERIES = load_series("series")
STAMP = SERIES.stamp(load_pin())
REVISION = "1b" * 20
BUILDER = "https://github.com/someone/slipstream/actions/runs/1"
SPDX, SLSA = "https://spdx.dev/Document", "https://slsa.dev/provenance/v1"
SBOM = {"spdxVersion": "SPDX-2.3", "packages": [{"name": "libc6"}, {"name": "llama-server"}]}
PROVENANCE = {
    "runDetails": {"builder": {"id": BUILDER}, "metadata": {"buildkit_metadata": {"vcs": {"revision": REVISION}}}}
}
ATTESTATIONS = {SPDX: SBOM, SLSA: PROVENANCE}
LABELS = {
    "org.opencontainers.image.revision": REVISION,
    "org.opencontainers.image.source": "https://github.com/someone/slipstream",
    "slipstream.variant": "cpu",
    "slipstream.architectures": "",
    "slipstream.patch-digest": SERIES.digest,
}
REPOSITORY_NAME = "someone/slipstream-llama-server"
TAG = f"{STAMP}-cpu"


@dataclass
class Verified:
    """What the command answered."""

    status: int
    answer: dict[str, Any]
    err: str

    @property
    def statuses(self) -> dict[str, str]:
        return {check["name"]: check["status"] for check in self.answer["checks"]}

    @property
    def failed(self) -> list[str]:
        return [name for name, status in self.statuses.items() if status == "fail"]

    def text(self, name: str) -> str:
        return next(str(check["text"]) for check in self.answer["checks"] if check["name"] == name)


@dataclass
class Published:
    """A registry, two signers, and the images that a test has made."""

    registry: Registry
    cosign: Cosign
    stranger: Cosign
    base: str

    @cached_property
    def plain(self) -> str:
        """An image on this machine that everything is right about."""
        return self.image()

    def image(self, *lines: str, **labels: str) -> str:
        """Another that `lines` of a Dockerfile and labels make differ. Its name."""
        name = f"{self.registry.address}/{REPOSITORY_NAME}:{TAG}-{secrets.token_hex(4)}"
        named = LABELS | {key.replace("__", ".").replace("_", "-"): value for key, value in labels.items()}
        build_variant(name, self.base, *lines, *(f'LABEL {key}="{value}"' for key, value in named.items()))
        return name

    def publish(self, name: str, attestations: dict[str, Any], tag: str = TAG) -> str:
        """Push an image, put it into an index with attestations under `tag`: the index, by digest."""
        MAIN.run("push", "--quiet", name)
        described = self.registry.descriptor(REPOSITORY_NAME, name.rpartition(":")[2])
        architecture = MAIN.run("image", "inspect", "--format", "{{.Architecture}}", name)
        image = described | {"platform": {"os": "linux", "architecture": architecture}}
        return self.at(self.registry.put_attested(REPOSITORY_NAME, tag, image, attestations))

    def at(self, digest: str) -> str:
        return f"{self.registry.address}/{REPOSITORY_NAME}@{digest}"

    @property
    def tagged(self) -> str:
        return f"{self.registry.address}/{REPOSITORY_NAME}:{TAG}"

    def call(self, *arguments: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """The command in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", "images", "verify", *arguments],
            cwd=REPOSITORY,
            env=environment or self.cosign.environment,
            capture_output=True,
            text=True,
            timeout=VERIFY_SECONDS,
            check=False,
        )

    def verify(self, *arguments: str, environment: dict[str, str] | None = None) -> Verified:
        """Its answer as JSON."""
        done = self.call(*arguments, "--json", environment=environment)
        return Verified(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)

    def forget(self) -> None:
        """Remove what this test has left on the engine."""
        listed = MAIN.run("image", "ls", "--quiet", "--filter", f"reference={self.registry.address}/*/*").split()
        if listed:
            MAIN.run("image", "rm", "--force", *set(listed))


@contextmanager
def publishing(base: str, folder: Path) -> Iterator[Published]:
    """A registry and two signers with keys; images start from `base`, an image with a llama-server."""
    signers = [make_cosign(folder / name) for name in ("signer", "stranger")]
    with attesting_registry() as registry:
        published = Published(registry, signers[0], signers[1], base)
        try:
            yield published
        finally:
            published.forget()
