"""A small tree that scripts/images builds, and what it needs to push: a registry with a base in it, a builder.

The tree has this repository's script, pin and patches around a Dockerfile that copies a file.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import REPOSITORY
from tests.support.registry import Buildx, registry, remote_builder

COMMITTED_AT = "2026-10-05T12:00:00Z"
SOURCE = "https://git.example/slipstream"
PLATFORMS = ("linux/amd64", "linux/arm64")
DOCKERFILE = """\
ARG CPU_BASE=nowhere/base
FROM ${CPU_BASE} AS llama-server
ARG VARIANT VERSION REVISION PATCH_DIGEST BASE_NAME BASE_DIGEST
COPY LICENSE /
LABEL slipstream.variant=${VARIANT} slipstream.patch-digest=${PATCH_DIGEST} \\
      org.opencontainers.image.version=${VERSION} org.opencontainers.image.revision=${REVISION} \\
      org.opencontainers.image.base.name=${BASE_NAME} org.opencontainers.image.base.digest=${BASE_DIGEST}

FROM llama-server AS slipstream
ARG VERSION
COPY README.md /
LABEL org.opencontainers.image.version=${VERSION}
"""
# What BuildKit asks of a program that lists packages: to write statements into a folder.
GENERATOR = r"""
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/toy.spdx.json", getenv("BUILDKIT_SCAN_DESTINATION"));
    FILE *file = fopen(path, "w");
    fputs("{\"_type\":\"https://in-toto.io/Statement/v0.1\",\"predicateType\":\"https://spdx.dev/Document\","
          "\"predicate\":{\"spdxVersion\":\"SPDX-2.3\","
          "\"packages\":[{\"name\":\"toy\",\"versionInfo\":\"1\"}]}}", file);
    return fclose(file);
}
"""


@dataclass(frozen=True)
class Site:
    """A registry with a base and an SBOM generator in it, a builder, and the tree that is built."""

    registry: str
    buildx: Buildx
    tree: Path
    base_digest: str

    @property
    def prefix(self) -> str:
        return f"{self.registry}/someone"

    def script(self, *argv: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        env = dict(self.buildx.environment) | {"CPU_BASE": f"{self.registry}/base:1", "LLAMA_SERVER": "build"}
        command = [sys.executable, "-B", str(self.tree / "scripts/images"), *argv]
        return subprocess.run(command, env=env | environment, capture_output=True, text=True, timeout=180)

    def succeeds(self, *argv: str, **environment: str) -> list[str]:
        """Lines on standard output."""
        done = self.script(*argv, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def fails(self, *argv: str, **environment: str) -> str:
        """The message of a run that ends with status 1."""
        done = self.script(*argv, **environment)
        assert (done.returncode, done.stdout) == (1, ""), f"{done.stdout}\n{done.stderr}"
        return done.stderr.strip().splitlines()[-1]

    def push(self, metadata: Path, *argv: str, **environment: str) -> list[dict[str, Any]]:
        attested = ("--sbom-generator", f"{self.registry}/generator:1")
        command = ("push", "cpu", "--registry", self.prefix, "--metadata", str(metadata), *attested, *argv)
        names = self.succeeds(*command, **environment)
        pushed: list[dict[str, Any]] = json.loads(metadata.read_text())
        assert names == [f"{one['image']}@{one['digest']}" for one in pushed]
        return pushed


def git(tree: Path, *argv: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": COMMITTED_AT}
    identity |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in identity.items()}
    done = subprocess.run(
        ["git", "-C", tree, *argv], env=os.environ | identity, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def plant(tree: Path) -> Path:
    """A repository of one commit."""
    for name in ("LICENSE", "README.md", "pyproject.toml", "scripts/images", "docker/accelerators.toml"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, tree / name)
    for name in ("docker/image", "docker/llamacpp", "patches"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "docker/Dockerfile").write_text(DOCKERFILE)
    git(tree, "init", "--quiet")
    git(tree, "remote", "add", "origin", f"{SOURCE}.git")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "first")
    return tree


def put_base_and_generator(buildx: Buildx, address: str, folder: Path) -> str:
    """Both images, in the registry: the digest of the base."""
    (folder / "base").mkdir()
    (folder / "base/Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /base\n")
    base = ("--platform", ",".join(PLATFORMS), "--tag", f"{address}/base:1")
    buildx.run("build", "--quiet", "--push", "--provenance=false", *base, str(folder / "base"))
    (folder / "generator").mkdir()
    (folder / "generator/g.c").write_text(GENERATOR)
    compiler = ["gcc", "-static", "-Os", "-s", "-o", "g", "g.c"]
    subprocess.run(compiler, cwd=folder / "generator", check=True, capture_output=True)
    (folder / "generator/Dockerfile").write_text('FROM scratch\nCOPY g /g\nENTRYPOINT ["/g"]\n')
    generator = ("--tag", f"{address}/generator:1", str(folder / "generator"))
    buildx.run("build", "--quiet", "--push", "--provenance=false", *generator)
    return str(buildx.inspect(f"{address}/base:1")["digest"])


@contextmanager
def pushing(folder: Path) -> Iterator[Site]:
    """All of it, in a folder and for as long as the block runs."""
    with registry() as address, remote_builder() as buildx:
        digest = put_base_and_generator(buildx, address, folder)
        yield Site(address, buildx, plant(folder / "tree"), digest)
