"""What the build of images is told, and what is refused before anything is built. Nothing is run."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from image import building, engine, facts
from image.building import Order, build_command, join
from image.engine import Base, Builder, compressed_bytes, platforms_in
from image.facts import ORCHESTRATOR, Commit, Image, images_of
from llamacpp.pin import PinError, load_series
from tests import REPOSITORY

SOURCE = "https://git.example/slipstream"
COMMIT = Commit("0123abc", 1_791_201_600, SOURCE)
CONTAINER_BUILDER = Builder("b", "docker-container")
ENGINE_BUILDER = Builder("default", "docker")
ORDER = Order(COMMIT, CONTAINER_BUILDER)
PUSH = replace(ORDER, registry="registry.example/someone", attestations=True)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings that the environment and .env would give."""
    given: dict[str, str] = {}
    for module in (facts, building):
        monkeypatch.setattr(module, "settings", lambda: given)
    return given


def one(name: str, kind: str) -> Image:
    [image] = images_of([name], kind)
    return image


def command(image: Image, order: Order = ORDER) -> list[str]:
    bases = [Base(image.base_argument, "base:1", "sha256:ba5e", "base:1@sha256:ba5e")]
    return build_command(image, order, bases, "METADATA")


def values(flag: str, argv: list[str]) -> list[str]:
    return [value for name, value in pairwise(argv) if name == flag]


def arguments(argv: list[str]) -> dict[str, str]:
    return dict(value.split("=", 1) for value in values("--build-arg", argv))


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda-86-real", "rocm"])
def test_the_build_is_told_what_the_labels_say(name: str) -> None:
    image = one(name, "llama-server")
    argv = command(image)
    told = arguments(argv)
    assert values("--target", argv) == ["llama-server"] and values("--tag", argv) == [image.local]
    assert (told["ACCELERATOR"], told["VARIANT"]) == (image.variant.accelerator, image.name)
    assert (told["SERVER"], told["ENGINE"]) == ("build", "llama-server")
    assert told["ARCHITECTURES"].split() == list(image.variant.architectures)
    assert (told["PATCH_DIGEST"], told["REVISION"]) == (load_series(image.variant.patches).digest, "0123abc")
    assert (told["BASE_NAME"], told["BASE_DIGEST"]) == ("base:1", "sha256:ba5e")
    assert told[f"{image.variant.accelerator.upper()}_BASE"] == "base:1@sha256:ba5e"
    assert told["SOURCE_DATE_EPOCH"] == "1791201600"
    assert values("--label", argv) == [
        "org.opencontainers.image.created=2026-10-05T12:00:00Z",
        "org.opencontainers.image.source=https://git.example/slipstream",
    ]


def test_product_and_server_have_versions_of_their_own() -> None:
    product = arguments(command(one("cpu", "slipstream")))["VERSION"]
    server = arguments(command(one("cpu", "llama-server")))["VERSION"]
    assert f'version = "{product}"' in (REPOSITORY / "pyproject.toml").read_text()
    assert one("cpu", "slipstream").tags[0] == f"{server}-cpu"


def test_the_orchestrator_alone_is_built_without_a_server(nothing_set: dict[str, str]) -> None:
    nothing_set["LLAMA_SERVER"] = "prebuilt"
    argv = command(one(ORCHESTRATOR, "slipstream"))
    told = arguments(argv)
    assert (told["ENGINE"], told["ACCELERATOR"], told["PATCH_DIGEST"]) == ("engine-base", "cpu", "")
    assert "slipstream.variant=orchestrator" in values("--label", argv)
    assert values("--tag", argv) == ["slipstream:orchestrator"] and not values("--build-context", argv)


def test_a_push_names_its_tags_or_none() -> None:
    image = one("cpu", "slipstream")
    tagged, by_digest = command(image, PUSH), command(image, replace(PUSH, by_digest=True))
    assert values("--tag", tagged) == [f"registry.example/someone/slipstream:{tag}" for tag in image.tags]
    assert "--push" in tagged and any(note.startswith("index:") for note in values("--annotation", tagged))
    [output] = values("--output", by_digest)
    assert (
        output
        == "type=image,name=registry.example/someone/slipstream,push-by-digest=true,name-canonical=true,push=true"
    )
    assert not values("--tag", by_digest) and not values("--annotation", by_digest)
    for argv in (tagged, by_digest):
        assert values("--attest", argv) == ["type=provenance,mode=max", "type=sbom"]
    assert "--provenance=false" in command(image, replace(PUSH, attestations=False))


def test_the_provenance_of_a_workflow_names_the_run_that_built(nothing_set: dict[str, str]) -> None:
    nothing_set |= {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "someone/slipstream"}
    nothing_set |= {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2"}
    attestation = values("--attest", command(one("cpu", "slipstream"), PUSH))[0]
    run = "https://git.example/someone/slipstream/actions/runs/7/attempts/2"
    assert attestation == f"type=provenance,mode=max,builder-id={run}"


def test_a_server_that_is_built_already_must_be_the_one_asked_for(nothing_set: dict[str, str], tmp_path: Path) -> None:
    image = one("rocm", "llama-server")
    nothing_set["LLAMA_SERVER"] = "prebuilt"
    with pytest.raises(PinError, match="LLAMA_SERVER=prebuilt needs LLAMA_SERVER_DIR"):
        command(image)
    nothing_set["LLAMA_SERVER_DIR"] = str(tmp_path)
    with pytest.raises(PinError, match=r"has no build\.json"):
        command(image)
    held = {"patches_sha256": image.series.digest, "variant": image.name, "profile": "native"}
    for wrong, found in (
        ({"variant": "cpu"}, "a server for cpu"),
        ({"patches_sha256": "f00d" * 16}, "patches f00df00d"),
    ):
        (tmp_path / "build.json").write_text(json.dumps(held | wrong))
        with pytest.raises(PinError, match=f"{found}.*expected rocm-gfx906 with {image.series.digest[:8]}"):
            command(image)
    (tmp_path / "build.json").write_text(json.dumps(held))
    assert values("--build-context", command(image)) == [f"prebuilt={tmp_path}"]
    with pytest.raises(PinError, match="--profile portable"):
        command(image, PUSH)
    nothing_set["LLAMA_SERVER"] = "mine"
    with pytest.raises(PinError, match="LLAMA_SERVER='mine', expected build or prebuilt"):
        command(image)


def test_what_cannot_be_is_refused_before_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ask", lambda *arguments: "[[Backing Filesystem extfs]]")
    cpu, cuda = images_of(["cpu"]), images_of(["cuda"])
    replace(PUSH, by_digest=True, cache_to=["type=gha"]).check(cpu)
    replace(ORDER, builder=ENGINE_BUILDER, cache_to=["type=inline"]).check(cpu)
    refusals = (
        (cuda, {"platform": "linux/arm64"}, "cuda is not built for 'linux/arm64', expected linux/amd64"),
        (cpu, {"registry": "ghcr.io/Me"}, "take lower case alone, ghcr.io/me"),
        (cpu, {"tag": "mine"}, "--tag mine names one image, but 2 are built"),
        (cpu, {"builder": ENGINE_BUILDER, "by_digest": True}, "a push by digest: not with the builder 'default'"),
        (cpu, {"builder": ENGINE_BUILDER, "attestations": True}, "--no-attestations leaves them out"),
        (cpu, {"builder": ENGINE_BUILDER, "cache_to": ["type=gha"]}, "--cache-to"),
    )
    for images, changes, message in refusals:
        with pytest.raises(PinError, match=message):
            replace(ORDER, **changes).check(images)


def test_only_a_whole_set_of_one_commit_is_joined(tmp_path: Path) -> None:
    def file(platform: str, revision: str = "0123abc") -> Path:
        path = tmp_path / f"{platform.replace('/', '-')}.json"
        labels = {"org.opencontainers.image.version": "1", "org.opencontainers.image.revision": revision}
        part = {"image": "r/slipstream", "variant": "cpu", "platform": platform, "digest": "sha256:1"}
        path.write_text(json.dumps([part | {"tags": ["t"], "labels": labels}]))
        return path

    amd64 = file("linux/amd64")
    with pytest.raises(PinError, match="was pushed for linux/amd64, expected linux/amd64, linux/arm64"):
        join([amd64], dry=True)
    with pytest.raises(PinError, match="differ in their revision: 0123abc, 4567def; push them all anew"):
        join([amd64, file("linux/arm64", "4567def")], dry=True)
    for content in ("{}", "[]", '[{"image": "r/slipstream"}]'):
        amd64.write_text(content)
        with pytest.raises(PinError, match=r"linux-amd64\.json is no file that push --by-digest --metadata wrote"):
            join([amd64], dry=True)
    with pytest.raises(PinError, match=r"cannot read .*LICENSE"):
        join([REPOSITORY / "LICENSE"], dry=True)


@pytest.mark.parametrize(
    ("name", "server", "bases"),
    [
        ("cpu", "build", ["CPU_BASE"]),
        ("cuda", "build", ["CUDA_BUILD_BASE", "CUDA_BASE"]),
        ("rocm", "prebuilt", ["ROCM_BASE"]),
        (ORCHESTRATOR, "build", ["CPU_BASE"]),
    ],
)
def test_only_the_bases_that_a_build_needs_are_asked_for(
    nothing_set: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str, server: str, bases: list[str]
) -> None:
    nothing_set["LLAMA_SERVER"] = server
    monkeypatch.setattr(building, "find_base", lambda argument, builder, dry: Base(argument, "b", "", "b"))
    assert [base.argument for base in building.bases_of(one(name, "slipstream"), ENGINE_BUILDER)] == bases


def test_attestations_are_no_platforms_and_no_bytes_to_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = {"digest": "sha256:s", "platform": {"os": "unknown", "architecture": "unknown"}}
    arm = {"digest": "sha256:a", "platform": {"os": "linux", "architecture": "arm", "variant": "v7"}}
    index = {"manifests": [statement, arm]}
    assert platforms_in(index) == ["linux/arm/v7"]
    held = {"r@sha256:i": index, "r@sha256:a": {"layers": [{"size": 3}, {"size": 4}]}}
    monkeypatch.setattr(engine, "registry_manifest", held.__getitem__)
    assert compressed_bytes("r", "sha256:i") == 7


def test_a_dry_run_needs_no_engine(tmp_path: Path) -> None:
    script = [sys.executable, "-B", str(REPOSITORY / "scripts/images")]
    env = {"PATH": str(tmp_path), "HOME": os.environ.get("HOME", "/")}
    dry = subprocess.run(
        [*script, "build", "cuda", "--print", "--cache-to", "type=inline"], env=env, capture_output=True, text=True
    )
    assert dry.returncode == 0, dry.stderr
    lines = [line.split() for line in dry.stdout.splitlines()]
    assert [line[:3] for line in lines] == [["docker", "buildx", "build"]] * 2
    # The last one's cache has everything.
    assert [values("--cache-to", line) for line in lines] == [[], ["type=inline"]]
    real = subprocess.run([*script, "build", "cuda"], env=env, capture_output=True, text=True)
    assert (real.returncode, real.stdout) == (1, "") and "no Docker engine answers" in real.stderr
