"""scripts/images on this engine: what it builds says what it is, and its trial finds an image that does not."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamacpp.pin import load_pin, load_series
from tests import REPOSITORY
from tests.support.docker import MAIN, bases, build_variant

pytestmark = pytest.mark.integration

OCI = "org.opencontainers.image."
BUILT = f"slipstream-llama-server:script-test-{os.getpid()}"
OTHER = f"slipstream-llama-server:smoke-test-{os.getpid()}"


def script(*argv: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(REPOSITORY / "scripts/images"), *argv]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)


def outcomes(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """`ok` or `WRONG` of each check."""
    return [line.split()[1] for line in done.stderr.splitlines() if line.split()[1:2] in (["ok"], ["WRONG"])]


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    yield
    for image in (BUILT, OTHER):
        assert MAIN.run("ps", "--all", "--quiet", "--filter", f"ancestor={image}") == ""
        subprocess.run(["docker", "image", "rm", image], capture_output=True, timeout=60)


def test_a_server_is_built_with_its_labels_and_answers(server: Path, no_leftovers: None, tmp_path: Path) -> None:
    environment = bases() | {"LLAMA_SERVER": "prebuilt", "LLAMA_SERVER_DIR": str(server.parent)}
    arguments = ("--kind", "llama-server", "--tag", BUILT, "--metadata", str(tmp_path / "m.json"))
    done = script("build", "cpu", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    [told] = json.loads((tmp_path / "m.json").read_text())
    found: dict[str, Any] = json.loads(MAIN.run("image", "inspect", BUILT))[0]
    assert (told["image"], told["bytes"]) == (BUILT, found["Size"])
    assert f"{BUILT} (cpu): {found['Size'] / 1e6:.0f} MB unpacked" in done.stderr

    labels = found["Config"]["Labels"]
    assert told["labels"].items() <= labels.items()
    assert labels["slipstream.patch-digest"] == load_series("series").digest
    assert labels[f"{OCI}version"] in told["tags"][0] and labels[f"{OCI}base.name"] == environment["CPU_BASE"]
    [base] = json.loads(MAIN.run("image", "inspect", environment["CPU_BASE"]))
    digests = [base["Id"], *(digest.partition("@")[2] for digest in base["RepoDigests"])]
    assert labels[f"{OCI}base.digest"] in digests

    tried = script("smoke", BUILT)
    assert tried.returncode == 0 and outcomes(tried) == ["ok"] * 4, tried.stderr
    assert f"commit {load_series('series').stamp(load_pin())}" in tried.stderr
    assert f"{BUILT} PASSED 4 checks" in tried.stderr


def test_a_product_answers(product_image: str) -> None:
    tried = script("smoke", product_image)
    assert tried.returncode == 0 and outcomes(tried) == ["ok"] * 4, tried.stderr


def test_the_orchestrator_alone_says_what_it_lacks(orchestrator_image: str) -> None:
    tried = script("smoke", orchestrator_image, "--variant", "orchestrator")
    assert tried.returncode == 0 and outcomes(tried) == ["ok"] * 4, tried.stderr


def test_an_image_that_is_not_what_it_says_fails(engine_image: str, no_leftovers: None) -> None:
    somebody_elses = (
        "USER 0:0",
        "RUN printf '#!/bin/sh\\necho build 11434\\n' >/opt/llama-server/llama-server",
        "USER 10001:10001",
    )
    false = 'ENTRYPOINT ["/bin/false"]'
    build_variant(OTHER, engine_image, *somebody_elses, "LABEL slipstream.variant=rocm-gfx906", false)
    tried = script("smoke", OTHER)
    assert tried.returncode == 1 and outcomes(tried) == ["WRONG"] * 4, tried.stderr
    for said in (
        load_series("series.rocm").digest[:8],
        "--help lacks --spec-draft-relaxed-top-n",
        "expected 'rocm-gfx906'",
        "it ended with exit status 1",
    ):
        assert said in tried.stderr
    assert tried.stderr.endswith(f"error: {OTHER} FAILED 4 of 4 checks\n")


def test_a_model_that_is_not_there_is_named(engine_image: str, tmp_path: Path) -> None:
    model = tmp_path / "nowhere.gguf"
    tried = script("smoke", engine_image, "--model", str(model))
    assert (tried.returncode, tried.stderr) == (1, f"error: --model {model} is no file\n")
    assert not model.exists(), "the engine makes a folder of what it is to mount"


def test_an_image_that_runs_as_root_or_writes_to_itself_fails(engine_image: str, no_leftovers: None) -> None:
    writes = 'ENTRYPOINT ["sh", "-c", "touch /x && exec /opt/slipstream/llama-server-start \\"$@\\"", "sh"]'
    build_variant(OTHER, engine_image, "USER 0:0", writes)
    tried = script("smoke", OTHER)
    assert tried.returncode == 1 and outcomes(tried) == ["ok", "ok", "WRONG", "WRONG"], tried.stderr
    assert "the user is '0:0'" in tried.stderr and "Read-only file system" in tried.stderr
