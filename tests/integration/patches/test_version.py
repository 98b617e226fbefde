"""``llama-server --version`` names the pin and the exact patch set."""

import hashlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import REPOSITORY

pytestmark = pytest.mark.integration

PATCHES = REPOSITORY / "patches"


def version(binary: Path) -> tuple[int, str]:
    """Build number and commit stamp."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\(build (\d+), commit (\S+)\)", said.stdout + said.stderr)
    assert found, f"no build and commit in {said.stdout + said.stderr!r}"
    return int(found[1]), found[2]


def pin() -> tuple[int, str]:
    """Build number, and the short commit or, where that is unknown, the tag."""
    git = tomllib.loads((PATCHES / "upstream.toml").read_text())["git"]
    return git["build_number"], git["commit"][:9] or git["tag"]


def test_the_patched_server_names_the_digest_of_its_patches(patched_server: Path) -> None:
    lines = (PATCHES / "series").read_text().splitlines()
    names = [name for line in lines if (name := line.split("#")[0].strip())]
    sums = "".join(f"{hashlib.sha256((PATCHES / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    build_number, revision = pin()
    assert names
    assert version(patched_server) == (build_number, f"{revision}-p{hashlib.sha256(sums.encode()).hexdigest()[:8]}")


def test_the_unpatched_server_says_so(unpatched_server: Path) -> None:
    build_number, revision = pin()
    assert version(unpatched_server) == (build_number, f"{revision}-unpatched")
