"""What `slipstream images verify` makes of what a registry, an engine and an image say. No program is started."""

from pathlib import Path
from typing import Any

import pytest

from llamacpp.pin import load_series
from llamacpp.variants import load_variant
from orchestrator.cli.images.attached import parse_attached
from orchestrator.cli.images.attestations import check_provenance, check_sbom
from orchestrator.cli.images.checks import Check, Report, Status, failed, not_checked, passed
from orchestrator.cli.images.contents import check_architectures, check_patches, check_server
from orchestrator.cli.images.inside import Inside
from orchestrator.cli.images.names import parse_name
from orchestrator.cli.images.patches import series_digest, series_name
from orchestrator.errors import SlipstreamError
from tests import REPOSITORY
from tests.unit.cli.conftest import Run

DIGEST = "sha256:" + "0a" * 32
PATCHES = "54e632fc" + "0" * 56
REVISION = "a" * 40
LABELS = {"slipstream.patch-digest": PATCHES, "slipstream.variant": "rocm-gfx906", "slipstream.architectures": "gfx906"}
SPDX = {"packages": [{"name": "librocblas4", "versionInfo": "6.4.4-4"}, {"name": "libc6"}]}
SLSA = {"builder": {"id": "https://github.com/o/r/actions/runs/1"}}
SLSA_OF_GIT = SLSA | {"invocation": {"configSource": {"digest": {"sha1": REVISION}}}}
VCS = {"vcs": {"revision": REVISION}}
SLSA_OF_FOLDER = SLSA | {"metadata": {"https://mobyproject.org/buildkit@v1#metadata": VCS}}
SLSA_1 = {"runDetails": {"builder": {"id": "https://b"}, "metadata": {"buildkit_metadata": VCS}}}


def platform(sbom: Any = SPDX, provenance: Any = SLSA_OF_GIT, **labels: str) -> dict[str, Any]:
    """buildx's answer about an image of one platform."""
    every = {"org.opencontainers.image.revision": REVISION} | LABELS | labels
    image = {"os": "linux", "architecture": "amd64", "config": {"Labels": every}, "rootfs": {}}
    return {"image": image, "sbom": sbom and {"SPDX": sbom}, "provenance": provenance and {"SLSA": provenance}}


def two_platforms(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """buildx's answer about an image of two."""
    both = {"linux/amd64": first, "linux/arm64": second}
    return {kind: {name: one[kind] for name, one in both.items() if one[kind]} for kind in first}


def status(check: Check) -> tuple[str, Status]:
    return check.name, check.status


@pytest.mark.parametrize(
    ("text", "repository", "owner"),
    [
        ("slipstream:cpu", "slipstream", None),
        ("someone/slipstream", "someone/slipstream", "someone"),
        ("ghcr.io/Someone/slipstream:latest-cpu", "ghcr.io/Someone/slipstream", "Someone"),
        ("127.0.0.1:5000/slipstream:cpu", "127.0.0.1:5000/slipstream", None),
        ("localhost/someone/a/b@" + DIGEST, "localhost/someone/a/b", "someone"),
    ],
)
def test_names_are_read_as_docker_reads_them(text: str, repository: str, owner: str | None) -> None:
    name = parse_name(text)
    assert (str(name), name.repository, name.owner) == (text, repository, owner)
    assert name.at(DIGEST) == f"{repository}@{DIGEST}"


@pytest.mark.parametrize("text", ["", "-v", "--key=x", "a b", "a@sha256:12", "a@b@c", "ghcr.io/o/r@" + DIGEST[:-1]])
def test_what_is_no_name_never_reaches_a_program(text: str) -> None:
    with pytest.raises(SlipstreamError, match="is no name of an image"):
        parse_name(text)


@pytest.mark.parametrize("provenance", [SLSA_OF_GIT, SLSA_OF_FOLDER, SLSA_1])
def test_attestations_of_every_shape(provenance: dict[str, Any]) -> None:
    image = parse_attached(DIGEST, platform(provenance=provenance))
    assert check_sbom(image) == passed("sbom", "linux/amd64: SPDX, 2 packages, librocblas4 6.4.4-4")
    found = check_provenance(image)
    assert found.status is Status.PASSED and REVISION in found.text and "builder https://" in found.text


@pytest.mark.parametrize("sbom", [None, {}, {"packages": []}, {"packages": [{"name": "libc6"}]}, {"packages": "many"}])
def test_an_sbom_that_names_nothing_or_no_rocblas(sbom: Any) -> None:
    assert status(check_sbom(parse_attached(DIGEST, platform(sbom=sbom)))) == ("sbom", Status.FAILED)


@pytest.mark.parametrize(
    ("provenance", "label"),
    [(None, REVISION), (SLSA, REVISION), (SLSA_1, "b" * 40), (SLSA_OF_GIT, "unknown"), (SLSA_OF_GIT, "")],
)
def test_provenance_of_another_revision_or_of_none(provenance: Any, label: str) -> None:
    image = parse_attached(DIGEST, platform(provenance=provenance, **{"org.opencontainers.image.revision": label}))
    assert status(check_provenance(image)) == ("provenance", Status.FAILED)


def test_every_platform_counts() -> None:
    whole = parse_attached(DIGEST, two_platforms(platform(), platform()))
    assert [check_sbom(whole).status, check_provenance(whole).status] == [Status.PASSED, Status.PASSED]
    half = parse_attached(DIGEST, two_platforms(platform(), platform(sbom=None, provenance=None)))
    assert "linux/arm64" in check_sbom(half).text and "linux/arm64" in check_provenance(half).text
    assert [check_sbom(half).status, check_provenance(half).status] == [Status.FAILED, Status.FAILED]
    other = parse_attached(DIGEST, two_platforms(platform(), platform(**{"slipstream.variant": "cpu"})))
    assert (other.label("slipstream.variant"), other.label("slipstream.patch-digest")) == ("", PATCHES)
    with pytest.raises(SlipstreamError, match="no platform"):
        parse_attached(DIGEST, {"image": {}, "sbom": {}, "provenance": {}})


@pytest.mark.parametrize("variant", ["cpu", "rocm", "cuda"])
def test_the_digest_of_a_series_is_that_of_the_build(variant: str) -> None:
    built = load_variant(variant)
    name = series_name(REPOSITORY / "patches", built.accelerator)
    assert (name, series_digest(REPOSITORY / "patches", name)) == (built.patches, load_series(name).digest)


def test_a_series_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("@series\n")
    with pytest.raises(SlipstreamError, match="takes itself in"):
        series_digest(tmp_path, "series")
    (tmp_path / "series").write_text("gone.patch\n")
    with pytest.raises(SlipstreamError, match=r"cannot read .*gone\.patch"):
        series_digest(tmp_path, "series")


def test_the_label_is_held_against_tag_and_series(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("a.patch # why\n")
    (tmp_path / "a.patch").write_text("a")
    digest = series_digest(tmp_path, "series")
    labels, tagged = {"slipstream.patch-digest": digest}, parse_name(f"r/slipstream:b11434-p{digest[:8]}-cpu")
    assert check_patches(tagged, labels, tmp_path).status is Status.PASSED
    assert check_patches(tagged, labels, None).status is Status.PASSED
    assert check_patches(parse_name("r/slipstream:latest-cpu"), labels, tmp_path).status is Status.PASSED
    assert check_patches(parse_name("r/slipstream:latest-cpu"), labels, None).status is Status.NOT_CHECKED
    assert check_patches(tagged, {}, None).status is Status.NOT_CHECKED
    assert check_patches(tagged, {"slipstream.llama-server": "/llama-server"}, None).status is Status.FAILED
    assert check_patches(tagged, {"slipstream.patch-digest": PATCHES}, None).status is Status.FAILED
    (tmp_path / "a.patch").write_text("b")
    other = check_patches(tagged, labels, tmp_path)
    assert other.status is Status.FAILED and str(tmp_path / "series") in other.text and digest in other.text


def inside(**changes: Any) -> Inside:
    built = {"patches_sha256": PATCHES, "stamp": "b11434-p54e632fc"}
    versions = {"variant": "rocm-gfx906", "architectures": ["gfx906"], "llama_cpp": built}
    found = {"versions": versions, "said": "version: 1 (b11434-p54e632fc)", "gpu_targets": frozenset({"gfx906"})}
    return Inside(**(found | changes))


def test_an_image_that_says_the_same_everywhere() -> None:
    assert check_server(LABELS, inside()).status is Status.PASSED
    architectures = check_architectures(LABELS, inside())
    assert architectures.status is Status.PASSED and "libggml-hip.so" in architectures.text
    assert check_architectures({}, inside(versions={"architectures": []}, gpu_targets=None)).status is Status.PASSED


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (LABELS | {"slipstream.patch-digest": "5" * 64}, inside()),
        (LABELS | {"slipstream.variant": "cpu"}, inside()),
        (LABELS, inside(said="version: 1 (b11434-p00000000)")),
        (LABELS, inside(said="version: 1 (b11434-unpatched)")),
        (LABELS, inside(versions={"variant": "rocm-gfx906", "llama_cpp": {"patches_sha256": "5" * 64}})),
        (LABELS, inside(versions={"variant": "rocm-gfx906", "llama_cpp": "b11434"})),
        ({}, inside(versions={}, said="")),
    ],
)
def test_a_server_that_is_not_what_the_labels_say(labels: dict[str, str], found: Inside) -> None:
    assert status(check_server(labels, found)) == ("server", Status.FAILED)


@pytest.mark.parametrize(
    "found",
    [
        inside(versions={"architectures": ["gfx906", "gfx1030"]}),
        inside(gpu_targets=frozenset({"gfx1030"})),
        inside(gpu_targets=frozenset()),
    ],
)
def test_architectures_that_differ(found: Inside) -> None:
    assert status(check_architectures(LABELS, found)) == ("architectures", Status.FAILED)


def test_only_a_failure_makes_a_report_fail() -> None:
    checks = (passed("a", ""), not_checked("b", ""))
    assert Report("image", DIGEST, checks).passed
    report = Report("image", None, (*checks, failed("c", "why")))
    assert (report.passed, report.verdict) == (False, "1 passed, 1 failed, 1 not checked")
    assert report.as_json()["checks"][2] == {"name": "c", "status": "fail", "text": "why"}


@pytest.mark.parametrize(
    "options", [("--key", "KEY", "--identity", "x"), ("--local", "--pull"), ("--local", "--key", "KEY")]
)
def test_options_that_exclude_each_other(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "KEY").write_text("")
    outcome = run("images", "verify", "slipstream:cpu", *options)
    assert (outcome.status, outcome.out) == (2, "")
