"""scripts/images against a real registry, by the builder of another engine: push by digest, join, attest, cache."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import REPOSITORY
from tests.support.cosign import make_cosign
from tests.support.docker import require_engine
from tests.support.pushing import COMMITTED_AT, PLATFORMS, SOURCE, Site, git, pushing

pytestmark = pytest.mark.integration

OCI = "org.opencontainers.image."
ENGINE_REPOSITORY, PRODUCT_REPOSITORY = "slipstream-llama-server", "slipstream"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_engine()
    with pushing(tmp_path_factory.mktemp("pushing")) as made:
        yield made


def test_two_platforms_are_pushed_by_digest_and_joined_under_their_tags(site: Site, tmp_path: Path) -> None:
    files, pushed = [], {}
    for platform in PLATFORMS:
        files.append(tmp_path / f"{platform.replace('/', '-')}.json")
        pushed[platform] = site.push(files[-1], "--by-digest", "--platform", platform)
        assert [one["image"] for one in pushed[platform]] == [
            f"{site.prefix}/{ENGINE_REPOSITORY}",
            f"{site.prefix}/{PRODUCT_REPOSITORY}",
        ]
    names = site.succeeds("manifest", *map(str, files))
    assert [name.partition("@")[0] for name in names] == [one["image"] for one in pushed[PLATFORMS[0]]]

    revision = git(site.tree, "rev-parse", "HEAD")
    for name, repository in zip(names, (ENGINE_REPOSITORY, PRODUCT_REPOSITORY), strict=True):
        [tag, latest] = site.succeeds("tags", "cpu", "--registry", site.prefix, "--kind", _kind(repository))
        for tagged in (tag, latest):
            assert f"{name.partition('@')[0]}@{site.buildx.inspect(tagged)['digest']}" == name
        index = site.buildx.raw(tag)
        _holds_both_platforms_with_their_attestations(index)
        images = site.buildx.inspect(tag, "Image")
        assert sorted(images) == list(PLATFORMS)
        for image in images.values():
            assert image["created"] == COMMITTED_AT
            labels = image["config"]["Labels"]
            assert labels[f"{OCI}base.digest"] == site.base_digest
            assert labels["slipstream.variant"] == "cpu"
            # An index says of itself what its images say.
            for fact in ("version", "revision", "base.digest", "created", "source"):
                assert index["annotations"][OCI + fact] == labels[OCI + fact]
            assert (labels[f"{OCI}revision"], labels[f"{OCI}source"]) == (revision, SOURCE)


def _kind(repository: str) -> str:
    return repository.removeprefix("slipstream-")


def _holds_both_platforms_with_their_attestations(index: dict[str, Any]) -> None:
    images = [m for m in index["manifests"] if m["platform"]["os"] != "unknown"]
    statements = [m["annotations"] for m in index["manifests"] if m["platform"]["os"] == "unknown"]
    assert sorted(f"{m['platform']['os']}/{m['platform']['architecture']}" for m in images) == list(PLATFORMS)
    assert {s["vnd.docker.reference.digest"] for s in statements} == {m["digest"] for m in images}


def test_what_is_pushed_has_an_sbom_and_its_full_provenance(site: Site, tmp_path: Path) -> None:
    run = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "a/b"}
    run |= {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2"}
    [one] = site.push(tmp_path / "m.json", "--kind", "llama-server", **run)
    assert one["tags"] == site.succeeds("tags", "cpu")
    for tag in one["tags"]:
        assert site.buildx.inspect(f"{one['image']}:{tag}")["digest"] == one["digest"]
    name = f"{one['image']}@{one['digest']}"
    assert site.buildx.inspect(name, "SBOM")["SPDX"]["packages"] == [{"name": "toy", "versionInfo": "1"}]
    provenance = site.buildx.inspect(name, "Provenance")["SLSA"]
    assert provenance["builder"]["id"] == "https://git.example/a/b/actions/runs/7/attempts/2"
    # mode=max tells the arguments; the base by its digest.
    given = provenance["invocation"]["parameters"]["args"]
    assert given["build-arg:CPU_BASE"] == f"{site.registry}/base:1@{site.base_digest}"
    assert site.base_digest.removeprefix("sha256:") in json.dumps(provenance["materials"])
    # And the commit, which `slipstream images verify` holds against the label.
    assert _commit(provenance) == one["labels"][f"{OCI}revision"] == git(site.tree, "rev-parse", "HEAD")
    assert site.buildx.raw(name)["annotations"][f"{OCI}source"] == SOURCE


def _commit(provenance: dict[str, Any]) -> str:
    """What the builder was told of the commit, beside the arguments."""
    return str(provenance["metadata"]["https://mobyproject.org/buildkit@v1#metadata"]["vcs"]["revision"])


def test_an_engine_pulls_it_by_digest(site: Site, tmp_path: Path) -> None:
    [one] = site.push(tmp_path / "m.json", "--kind", "slipstream")
    name = f"{one['image']}@{one['digest']}"
    site.buildx.engine.run("pull", "--quiet", name)
    [found] = json.loads(site.buildx.engine.run("image", "inspect", name))
    assert found["Config"]["Labels"][f"{OCI}version"] == one["labels"][f"{OCI}version"]
    assert one["platform"] == f"{found['Os']}/{found['Architecture']}"


def test_a_cache_is_kept_in_the_registry_and_taken_from_it(site: Site, tmp_path: Path) -> None:
    cache = f"type=registry,ref={site.prefix}/cache:cpu"
    site.push(tmp_path / "m.json", "--by-digest", "--kind", "slipstream", "--cache-to", f"{cache},mode=max")
    assert site.buildx.raw(f"{site.prefix}/cache:cpu")["manifests"]
    site.buildx.run("prune", "--all", "--force")
    command = ("push", "cpu", "--registry", site.prefix, "--kind", "slipstream", "--no-attestations")
    done = site.script(*command, "--cache-from", cache)
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stderr.splitlines() if "COPY" in line]
    cached = [line.split()[0] for line in done.stderr.splitlines() if line.endswith(" CACHED")]
    assert steps and all(step.split()[0] in cached for step in steps), done.stderr


def test_an_engines_own_builder_pushes_tags_and_says_that_it_cannot_push_by_digest(site: Site, tmp_path: Path) -> None:
    own = {"BUILDX_BUILDER": "default"}
    site.buildx.engine.run("pull", "--quiet", f"{site.registry}/base:1")
    [one] = site.push(tmp_path / "m.json", "--kind", "llama-server", **own)
    assert one["labels"][f"{OCI}base.digest"] == site.base_digest
    message = site.fails("push", "cpu", "--registry", site.prefix, "--by-digest", **own)
    assert "'default' (driver docker)" in message and "--driver docker-container" in message


def test_a_builder_of_its_own_gives_its_image_to_the_engine(site: Site, tmp_path: Path) -> None:
    site.succeeds("build", "cpu", "--kind", "llama-server", "--metadata", str(tmp_path / "m.json"))
    [one] = json.loads((tmp_path / "m.json").read_text())
    [found] = json.loads(site.buildx.engine.run("image", "inspect", "slipstream-llama-server:cpu"))
    assert one["image"] == "slipstream-llama-server:cpu" and one["bytes"] == found["Size"] > 0
    assert one["labels"].items() <= found["Config"]["Labels"].items()


def test_a_base_that_is_nowhere_is_named(site: Site) -> None:
    nowhere = f"{site.registry}/nowhere:1"
    message = site.fails("push", "cpu", "--registry", site.prefix, CPU_BASE=nowhere)
    assert f"the base {nowhere} (CPU_BASE)" in message and "docker/base-image" in message


def test_what_is_not_committed_is_not_pushed(site: Site, tmp_path: Path) -> None:
    note = site.tree / "patches/note.txt"
    note.write_text("")
    try:
        message = site.fails("push", "cpu", "--registry", site.prefix, "--kind", "llama-server")
        assert "patches/note.txt" in message and "--allow-dirty" in message
        [one] = site.push(tmp_path / "m.json", "--by-digest", "--kind", "llama-server", "--allow-dirty")
    finally:
        note.unlink()
    revision = f"{git(site.tree, 'rev-parse', 'HEAD')}-dirty"
    assert one["labels"][f"{OCI}revision"] == revision
    assert _commit(site.buildx.inspect(f"{one['image']}@{one['digest']}", "Provenance")["SLSA"]) == revision


def test_what_is_pushed_and_signed_is_what_users_can_verify(site: Site, tmp_path: Path) -> None:
    cosign = make_cosign(tmp_path / "cosign")
    [one] = site.push(tmp_path / "m.json", "--kind", "llama-server")
    name, key = f"{one['image']}:{one['tags'][0]}", ("--key", str(cosign.public_key))
    command = [
        sys.executable,
        "-m",
        "orchestrator.cli",
        "images",
        "verify",
        name,
        *key,
        "--patches",
        "patches",
        "--json",
    ]
    env = cosign.environment | {"DOCKER_HOST": site.buildx.engine.address}
    for is_signed in (False, True):
        if is_signed:
            cosign.sign(f"{one['image']}@{one['digest']}")
        done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60)
        found = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
        expected = dict.fromkeys(("digest", "signature", "sbom", "provenance", "patches"), "pass")
        expected |= dict.fromkeys(("server", "architectures"), "not checked")
        assert (done.returncode, found) == (
            0 if is_signed else 1,
            expected | ({} if is_signed else {"signature": "fail"}),
        )
