"""The `docker` program: what it is asked, what it is told, and what its builder can do."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from image.facts import base_name
from llamacpp.console import say
from llamacpp.pin import PinError

BUILDER = "docker buildx create --use --driver docker-container"


def ask(*arguments: str) -> str | None:
    """Standard output of a docker command that may fail."""
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def require() -> None:
    """Raise PinError unless an engine with buildx answers."""
    if ask("version") is None:
        raise PinError("no Docker engine answers 'docker version'; start one, or as root: make engine")
    if ask("buildx", "version") is None:
        raise PinError("docker has no buildx; install Docker's plugin (Debian: docker-buildx)")


def run(*arguments: str, dry: bool = False) -> None:
    """A docker command whose output people see, on standard error; `dry` prints it instead."""
    if dry:
        print(shlex.join(["docker", *arguments]))
        return
    # buildx writes the commit into the provenance; of a changed tree it says so only when it is told to look.
    env = os.environ | {"BUILDX_GIT_CHECK_DIRTY": "true"}
    status = subprocess.run(["docker", *arguments], stdin=subprocess.DEVNULL, stdout=2, env=env).returncode
    if status:
        raise PinError(f"docker {' '.join(arguments[:2])} ended with exit status {status}; what it said is above")


@dataclass(frozen=True)
class Builder:
    """The builder that buildx uses now (BUILDX_BUILDER or `docker buildx use` name another)."""

    name: str
    driver: str

    @cached_property
    def _stores_indexes(self) -> bool:
        return self.driver != "docker" or "containerd" in (ask("info", "--format", "{{.DriverStatus}}") or "")

    def require(self, what: str, *, by_digest: bool = False) -> None:
        """Raise PinError that says what would do, where this builder cannot give attestations, caches or digests."""
        if self._stores_indexes and not (by_digest and self.driver == "docker"):
            return
        raise PinError(f"{what}: not with the builder {self.name!r} (driver {self.driver}); make one: {BUILDER}")


def builder() -> Builder:
    facts = dict(line.split(":", 1) for line in (ask("buildx", "inspect") or "").splitlines()[:3] if ":" in line)
    return Builder(facts.get("Name", "default").strip(), facts.get("Driver", "docker").strip())


@dataclass(frozen=True)
class Base:
    """An image to build on. `reference` is what the build is given: with the digest where a registry told it."""

    argument: str
    name: str
    digest: str
    reference: str


def find_base(argument: str, builder: Builder, *, dry: bool = False) -> Base:
    """The base of an argument of the Dockerfile, on this engine or in its registry. Raises PinError unless `dry`."""
    name = base_name(argument)
    if "@sha256:" in name:
        return Base(argument, name, name.rpartition("@")[2], name)
    # The engine's own builder takes what the engine has; others see registries alone.
    if builder.driver == "docker" and (text := ask("image", "inspect", name)):
        found = json.loads(text)[0]
        digests = [digest.rpartition("@")[2] for digest in found.get("RepoDigests") or []]
        return Base(argument, name, digests[0] if digests else found["Id"], name)
    if digest := registry_digest(name):
        return Base(argument, name, digest, f"{name}@{digest}")
    if dry:
        return Base(argument, name, "unknown", name)
    raise PinError(
        f"the base {name} ({argument}) is in no registry that answers"
        + (", nor on this engine" if builder.driver == "docker" else "")
        + f"; set {argument}, here or in .env, to an image that is (docker/base-image makes stand-ins)"
    )


def registry_digest(reference: str) -> str:
    text = ask("buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", reference)
    return str(json.loads(text)["digest"]) if text else ""


def registry_manifest(reference: str) -> dict[str, Any]:
    """A manifest or an index as the registry has it. Raises PinError."""
    text = ask("buildx", "imagetools", "inspect", "--raw", reference)
    if text is None:
        raise PinError(f"{reference} cannot be read from its registry: docker buildx imagetools inspect {reference}")
    return dict(json.loads(text))


def platforms_in(index: dict[str, Any]) -> list[str]:
    """Platforms of an index, without the attestations that stand beside them."""
    parts = [manifest.get("platform", {}) for manifest in index.get("manifests", [])]
    return sorted(
        "/".join(filter(None, (part["os"], part["architecture"], part.get("variant"))))
        for part in parts
        if part.get("os", "unknown") != "unknown"
    )


def compressed_bytes(repository: str, digest: str) -> int:
    """What a pull of an image of one platform brings; 0 where the registry does not say."""
    try:
        manifest = registry_manifest(f"{repository}@{digest}")
    except PinError:
        return 0
    for entry in manifest.get("manifests", []):
        if entry.get("platform", {}).get("os", "unknown") != "unknown":
            return compressed_bytes(repository, entry["digest"])
    return sum(layer["size"] for layer in manifest["layers"])


def unpacked_bytes(name: str) -> int:
    """Size of an image on this engine; 0 where it is not there."""
    return int(ask("image", "inspect", "--format", "{{.Size}}", name) or 0)


def megabytes(size: int) -> str:
    if not size:
        return "unknown size"
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


def told(message: str) -> None:
    say(f"images: {message}")
