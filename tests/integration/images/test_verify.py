"""`slipstream images verify` on real images in a real registry, signed and attested; what is wrong fails."""

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.images.programs import Programs
from orchestrator.errors import SlipstreamError
from tests.integration.images.published import (
    ATTESTATIONS,
    BUILDER,
    PROVENANCE,
    REPOSITORY_NAME,
    REVISION,
    SBOM,
    SERIES,
    SLSA,
    SPDX,
    STAMP,
    Published,
)
from tests.support.docker import MAIN
from tests.support.polling import eventually

pytestmark = pytest.mark.integration

CHECKS = ("digest", "signature", "sbom", "provenance", "patches", "server", "architectures")


def runs(process: int) -> bool:
    """Whether there is such a process; one that nobody has waited for has ended all the same."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def good(published: Published) -> str:
    """A published image, by digest, that everything is right about; its tag is `published.tagged`."""
    index = published.publish(published.plain, ATTESTATIONS)
    published.cosign.sign(index)
    return index


def test_an_image_that_is_what_it_says(published: Published, good: str) -> None:
    key = ("--key", str(published.cosign.public_key))
    found = published.verify(published.tagged, *key, "--patches", "patches", "--pull")
    assert found.failed == [], found.answer
    assert found.status == 0 and found.statuses == dict.fromkeys(CHECKS, "pass")
    assert found.answer["digest"] == good.rpartition("@")[2]
    assert "SPDX, 2 packages" in found.text("sbom")
    assert REVISION in found.text("provenance") and BUILDER in found.text("provenance")
    assert STAMP in found.text("server")
    # It came by its digest, so the name is not known here.
    assert "not on this machine" in found.text("digest")
    assert MAIN.run("ps", "--all", "--quiet", "--filter", "name=slipstream-verify-") == ""
    MAIN.run("pull", "--quiet", published.tagged)
    assert "and on this machine" in published.verify(published.tagged, *key).text("digest")


def test_without_a_pull_the_rest_is_checked(published: Published, good: str) -> None:
    # Of the same content, so that nobody has pulled it.
    index = published.publish(published.plain, ATTESTATIONS | {SPDX: SBOM | {"name": secrets.token_hex(8)}}, "unpulled")
    published.cosign.sign(index)
    found = published.verify(index, "--key", str(published.cosign.public_key))
    assert (found.status, found.failed) == (0, [])
    assert [found.statuses[name] for name in ("server", "architectures")] == ["not checked"] * 2
    assert "--pull" in found.text("server")


def test_another_key_fails_and_nothing_of_the_image_is_run(published: Published, good: str) -> None:
    found = published.verify(good, "--key", str(published.stranger.public_key), "--pull")
    assert (found.status, found.failed) == (1, ["signature"])
    assert "signed, but not by the key" in found.text("signature")
    assert [found.statuses[name] for name in ("server", "architectures")] == ["not checked"] * 2


def test_a_tag_that_was_moved_to_an_unsigned_image_fails(published: Published, good: str) -> None:
    tampered = published.image("ENV LD_PRELOAD=/tmp/evil.so")
    index = published.publish(tampered, ATTESTATIONS, "moved")
    found = published.verify(
        f"{published.registry.address}/{REPOSITORY_NAME}:moved", "--key", str(published.cosign.public_key)
    )
    assert (found.status, found.failed) == (1, ["signature"])
    assert found.text("signature").startswith("not signed") and found.answer["digest"] == index.rpartition("@")[2]


def test_an_image_here_that_is_not_the_one_there_fails(published: Published, good: str) -> None:
    here = published.image("ENV A=1")
    there = published.publish(published.plain, ATTESTATIONS, here.rpartition(":")[2])
    published.cosign.sign(there)
    found = published.verify(here, "--key", str(published.cosign.public_key))
    assert (found.status, found.failed) == (1, ["digest"])
    assert "docker pull" in found.text("digest")


@pytest.mark.parametrize(
    ("attestations", "failed"),
    [
        ({}, ["sbom", "provenance"]),
        ({SLSA: PROVENANCE}, ["sbom"]),
        ({SPDX: SBOM, SLSA: {"runDetails": {"builder": {"id": BUILDER}}}}, ["provenance"]),
    ],
    ids=["none", "no SBOM", "no revision"],
)
def test_what_is_not_attached_fails(published: Published, attestations: dict[str, Any], failed: list[str]) -> None:
    index = published.publish(published.plain, attestations, "attested")
    published.cosign.sign(index)
    found = published.verify(index, "--key", str(published.cosign.public_key))
    assert (found.status, found.failed) == (1, failed)


def test_a_label_that_the_server_does_not_bear_out_fails(published: Published) -> None:
    tag = f"{STAMP}-forged"
    published.cosign.sign(published.publish(published.image(slipstream__patch_digest="0" * 64), ATTESTATIONS, tag))
    found = published.verify(
        f"{published.registry.address}/{REPOSITORY_NAME}:{tag}", "--key", str(published.cosign.public_key), "--pull"
    )
    assert (found.status, found.failed) == (1, ["patches", "server"])
    assert f"the tag says {SERIES.digest[:8]}" in found.text("patches")
    assert f"/versions.json says {SERIES.digest}" in found.text("server")


def test_by_itself_it_asks_for_the_workflow_of_the_repository(published: Published, good: str, tmp_path: Path) -> None:
    stub, asked = tmp_path / "cosign", tmp_path / "asked"
    stub.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{asked}\necho "Error: no matching signatures: none" >&2\nexit 12\n'
    )
    stub.chmod(0o755)
    found = published.verify(good, environment=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (found.status, found.failed) == (1, ["signature"])
    identity = r"^https://github\.com/someone/slipstream/\.github/workflows/images\.yml@refs/(heads/main|tags/.*)$"
    issuer = "https://token.actions.githubusercontent.com"
    assert asked.read_text().splitlines() == [
        *("verify", "--output", "json", "--certificate-identity-regexp", identity),
        *("--certificate-oidc-issuer", issuer, good),
    ]


def test_a_source_of_another_owner_is_no_identity(published: Published) -> None:
    index = published.publish(
        published.image(org__opencontainers__image__source="https://github.com/another/slipstream"),
        ATTESTATIONS,
        "stolen",
    )
    found = published.verify(index)
    assert "signature" in found.failed and "a label alone proves nothing" in found.text("signature")


def test_without_cosign_it_fails_and_says_how_to_get_it(published: Published, good: str, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.symlink_to(shutil.which("docker") or "docker")
    found = published.verify(good, environment=os.environ | {"PATH": str(tmp_path)})
    assert (found.status, found.failed) == (1, ["signature"])
    assert "cosign is not installed" in found.text("signature") and "package cosign" in found.text("signature")


def test_an_image_that_was_not_pushed(published: Published) -> None:
    found = published.verify(published.plain, "--local", "--patches", "patches")
    assert (found.status, found.failed) == (0, []), found.answer
    assert [found.statuses[name] for name in ("signature", "sbom", "provenance")] == ["not checked"] * 3
    assert found.statuses["server"] == "pass"


def test_a_rocm_image_shows_its_code_objects(published: Published) -> None:
    facts = """sed -i 's/"accelerator": "cpu"/"accelerator": "rocm"/; s/"variant": "cpu"/"variant": "rocm-gfx906"/; """
    facts += """s/"architectures": \\[\\]/"architectures": ["gfx906"]/' /versions.json"""
    library = "printf 'hipv4-amdgcn-amd-amdhsa--gfx{}' >/opt/llama-server/libggml-hip.so"
    labels = {"slipstream__variant": "rocm-gfx906", "slipstream__architectures": "gfx906"}
    lines = ("USER 0:0", f"RUN {facts}")
    found = published.verify(published.image(*lines, f"RUN {library.format('906')}", **labels), "--local")
    assert (found.status, found.failed) == (0, []), found.answer
    assert "the code in libggml-hip.so" in found.text("architectures")
    found = published.verify(published.image(*lines, f"RUN {library.format('1030')}", **labels), "--local")
    assert (found.status, found.failed) == (1, ["architectures"])


def test_what_is_not_there_is_an_error_of_a_line(published: Published) -> None:
    found = published.verify(f"{published.registry.address}/{REPOSITORY_NAME}:none")
    assert (found.status, found.answer) == (1, {})
    assert found.err.startswith("error: the registry was asked for ") and "not found" in found.err
    found = published.verify("slipstream:there-is-none", "--local")
    assert found.err == "error: there is no image slipstream:there-is-none on this machine\n"


def test_people_read_a_line_a_check(published: Published) -> None:
    done = published.call(published.plain, "--local", "--verbose")
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["pass", *["not checked"] * 3, "pass", "pass", "pass"]
    assert lines[-1] == "4 passed, 0 failed, 3 not checked"
    assert (
        done.stderr.startswith(f"$ docker image inspect {published.plain}\n") and "docker start --attach" in done.stderr
    )


def test_a_program_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! >{tmp_path}/child; wait"
    with pytest.raises(SlipstreamError, match=r"sh -c .* did not end within 0\.5 s"):
        Programs().run(["sh", "-c", script], 0.5)
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not runs(child), "the child has ended")


def test_a_program_that_is_absent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlipstreamError, match="docker is not installed") as caught:
        Programs().run(["docker"], 1)
    assert "docker-buildx" in (caught.value.hint or "")
