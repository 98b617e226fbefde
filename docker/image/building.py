"""Build, push, and join platforms under tags."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from image import engine
from image.engine import Base, Builder, find_base, megabytes, told
from image.facts import DOCKERFILE, LABEL, ORCHESTRATOR, Commit, Image, labels, settings
from llamacpp.pin import ROOT, PinError
from llamacpp.variants import load_variant


@dataclass(frozen=True)
class Order:
    """How to build; the same for every image of a run. A `registry` makes a push of it."""

    commit: Commit
    builder: Builder
    platform: str = ""
    registry: str = ""
    tag: str = ""
    by_digest: bool = False
    attestations: bool = False
    sbom_generator: str = ""
    cache_from: list[str] = field(default_factory=list)
    cache_to: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def check(self, images: list[Image]) -> None:
        """Raise PinError for what is known to fail before anything is built."""
        for image in images:
            if self.platform and self.platform not in image.variant.platforms:
                expected = " or ".join(image.variant.platforms)
                raise PinError(f"{image.name} is not built for {self.platform!r}, expected {expected}")
        if self.registry != self.registry.lower():
            raise PinError(f"--registry {self.registry}: registries take lower case alone, {self.registry.lower()}")
        if self.tag and len(images) > 1:
            raise PinError(f"--tag {self.tag} names one image, but {len(images)} are built; choose one with --kind")
        if self.by_digest:
            self.builder.require("a push by digest", by_digest=True)
        if self.attestations:
            self.builder.require("SBOM and provenance (--no-attestations leaves them out)")
        if any("type=inline" not in cache for cache in self.cache_to):
            self.builder.require("a cache to keep elsewhere (--cache-to)")


def bases_of(image: Image, builder: Builder, *, dry: bool = False) -> list[Base]:
    """The images that a build starts from, the one that the result stands on last."""
    wanted = [image.base_argument]
    compiles = image.name != ORCHESTRATOR and (settings().get("LLAMA_SERVER") or "build") == "build"
    if compiles and image.variant.accelerator != "cpu":
        wanted.insert(0, image.base_argument.replace("_BASE", "_BUILD_BASE"))
    return [find_base(argument, builder, dry=dry) for argument in wanted]


def prebuilt(image: Image, pushed: bool) -> Path | None:
    """The folder of the server that LLAMA_SERVER=prebuilt puts in; None where it is built. Raises PinError."""
    choice = settings().get("LLAMA_SERVER") or "build"
    if choice not in ("build", "prebuilt"):
        raise PinError(f"LLAMA_SERVER={choice!r}, expected build or prebuilt")
    if choice == "build" or image.name == ORCHESTRATOR:
        return None
    if not (named := settings().get("LLAMA_SERVER_DIR")):
        raise PinError("LLAMA_SERVER=prebuilt needs LLAMA_SERVER_DIR, a folder that docker/build-llama-server made")
    folder = ROOT / named
    try:
        facts = json.loads((folder / "build.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PinError(
            f"LLAMA_SERVER_DIR={folder} has no build.json; docker/build-llama-server makes such folders"
        ) from error
    wanted = (image.series.digest, image.variant.name)
    if (held := (facts.get("patches_sha256"), facts.get("variant", "cpu"))) != wanted:
        raise PinError(
            f"LLAMA_SERVER_DIR={folder} holds a server for {held[1]} with the patches {str(held[0])[:8]}, "
            f"expected {wanted[1]} with {wanted[0][:8]}"
        )
    if pushed and facts.get("profile") != "portable":
        raise PinError(f"LLAMA_SERVER_DIR={folder} holds a server for this processor; push one of --profile portable")
    return folder


def build_command(image: Image, order: Order, bases: list[Base], metadata: str) -> list[str]:
    """The `docker` arguments that build one image, and push it where the order names a registry."""
    base = bases[-1]
    about = labels(image, order.commit, base.name, base.digest)
    folder = prebuilt(image, bool(order.registry))
    arguments = {
        "ACCELERATOR": image.variant.accelerator,
        "VARIANT": image.variant.name,
        "SERVER": "prebuilt" if folder else "build",
        "SOURCE": settings().get("LLAMA_SOURCE", ""),
        "ENGINE": "engine-base" if image.name == ORCHESTRATOR else "llama-server",
        **{each.argument: each.reference for each in bases},
        "VERSION": image.version,
        "REVISION": order.commit.revision,
        "PATCH_DIGEST": "" if image.name == ORCHESTRATOR else image.series.digest,
        "ARCHITECTURES": " ".join(image.variant.architectures),
        "BASE_NAME": base.name,
        "BASE_DIGEST": base.digest,
    }
    if order.commit.created_seconds is not None:
        arguments["SOURCE_DATE_EPOCH"] = str(order.commit.created_seconds)
    given = [f"{name}={value}" for name, value in arguments.items()] + order.arguments
    command = ["buildx", "build", "--file", str(DOCKERFILE), "--target", image.kind, "--metadata-file", metadata]
    command += [part for each in given for part in ("--build-arg", each)]
    own = {name: about[LABEL + name] for name in ("created", "source") if LABEL + name in about}
    command += [part for name, value in own.items() for part in ("--label", f"{LABEL}{name}={value}")]
    command += ["--label", f"slipstream.variant={image.name}"] if image.name == ORCHESTRATOR else []
    command += ["--build-context", f"prebuilt={folder}"] if folder else []
    command += ["--platform", order.platform] if order.platform else []
    command += [part for ref in order.cache_from for part in ("--cache-from", ref)]
    command += [part for ref in order.cache_to for part in ("--cache-to", ref)]
    return [*command, *_output(image, order, about), str(ROOT)]


def _output(image: Image, order: Order, about: dict[str, str]) -> Iterator[str]:
    if not order.registry:
        yield from ("--load", "--tag", order.tag or image.local)
        return
    name = f"{order.registry}/{image.repository}"
    if order.by_digest:
        yield from ("--output", f"type=image,name={name},push-by-digest=true,name-canonical=true,push=true")
    else:
        yield "--push"
        for tag in image.tags:
            yield from ("--tag", f"{name}:{tag}")
    if not order.attestations:
        yield from ("--provenance=false", "--sbom=false")
        return
    generator = f",generator={order.sbom_generator}" if order.sbom_generator else ""
    yield from ("--attest", f"type=provenance,mode=max{_builder_id()}", "--attest", f"type=sbom{generator}")
    # With attestations even one platform has an index; joining platforms makes a new one.
    if not order.by_digest:
        for key, value in about.items():
            yield from ("--annotation", f"index:{key}={value}")


def _builder_id() -> str:
    """The run of GitHub Actions that builds, for the provenance: BuildKit does not know it."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT")
    server, repository, run, attempt = (settings().get(name, "") for name in names)
    return f",builder-id={server}/{repository}/actions/runs/{run}/attempts/{attempt}" if run else ""


def build(image: Image, order: Order, *, dry: bool) -> dict[str, Any]:
    """Build one image, push it where the order says so: what became of it, as --metadata has it."""
    bases = bases_of(image, order.builder, dry=dry)
    started = time.monotonic()
    name = f"{order.registry}/{image.repository}" if order.registry else order.tag or image.local
    with tempfile.TemporaryDirectory(prefix="slipstream-images-") as folder:
        metadata = Path(folder, "metadata.json")
        command = build_command(image, order, bases, "METADATA" if dry else str(metadata))
        if dry:
            engine.run(*command, dry=True)
            return {}
        told(f"building {name} ({image.name}) from {bases[-1].name}")
        engine.run(*command)
        told_by_buildx = json.loads(metadata.read_text(encoding="utf-8"))
    digest = told_by_buildx["containerimage.digest"]
    size = engine.compressed_bytes(name, digest) if order.registry else engine.unpacked_bytes(name)
    seconds = time.monotonic() - started
    what = "to pull" if order.registry else "unpacked"
    told(f"{name} ({image.name}): {megabytes(size)} {what}, {seconds:.0f} s, {digest}")
    return {
        "image": name,
        "variant": image.name,
        "platform": order.platform or _platform_of_builder(),
        "digest": digest,
        "tags": list(image.tags),
        "labels": labels(image, order.commit, bases[-1].name, bases[-1].digest),
        "bytes": size,
        "seconds": round(seconds, 1),
    }


def _platform_of_builder() -> str:
    return (engine.ask("version", "--format", "{{.Server.Os}}/{{.Server.Arch}}") or "").strip()


def join(files: list[Path], *, dry: bool) -> list[str]:
    """Put what was pushed by digest under its tags, one index of all platforms an image: the names with digests."""
    pushed: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in [one for file in files for one in _read(file)]:
        pushed.setdefault((one["image"], one["variant"]), []).append(one)
    for parts in pushed.values():
        _check_parts(parts)
    return [_join(name, parts, dry=dry) for (name, _), parts in pushed.items()]


def _read(file: Path) -> list[dict[str, Any]]:
    wanted = {"image", "variant", "platform", "digest", "tags", "labels"}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PinError(f"cannot read {file}: {error}") from error
    if not isinstance(found, list) or not found or any(not isinstance(one, dict) or wanted - set(one) for one in found):
        raise PinError(f"{file} is no file that push --by-digest --metadata wrote")
    return found


def _check_parts(parts: list[dict[str, Any]]) -> None:
    title = f"{parts[0]['image']} ({parts[0]['variant']})"
    variant = parts[0]["variant"]
    wanted = sorted(load_variant("cpu" if variant == ORCHESTRATOR else variant).platforms)
    if (found := sorted(part["platform"] for part in parts)) != wanted:
        raise PinError(f"{title} was pushed for {', '.join(found)}, expected {', '.join(wanted)}")
    for fact in ("version", "revision"):
        if len(found := sorted({part["labels"][LABEL + fact] for part in parts})) > 1:
            raise PinError(f"the platforms of {title} differ in their {fact}: {', '.join(found)}; push them all anew")


def _join(name: str, parts: list[dict[str, Any]], *, dry: bool) -> str:
    first = parts[0]
    # What is true of every platform; their bases may differ where they are no multi-platform images.
    common = dict(item for item in first["labels"].items() if all(item in part["labels"].items() for part in parts))
    command = ["buildx", "imagetools", "create"]
    command += [part for tag in first["tags"] for part in ("--tag", f"{name}:{tag}")]
    command += [part for key, value in common.items() for part in ("--annotation", f"index:{key}={value}")]
    command += [f"{name}@{part['digest']}" for part in parts]
    engine.run(*command, dry=dry)
    if dry:
        return ""
    digest = engine.registry_digest(f"{name}:{first['tags'][0]}")
    held = engine.platforms_in(engine.registry_manifest(f"{name}@{digest}"))
    if held != sorted(part["platform"] for part in parts):
        raise PinError(f"{name}@{digest} holds {', '.join(held)}: it was changed by somebody else; run this again")
    told(f"{name}: {', '.join(first['tags'])} are {digest} for {', '.join(held)}")
    return f"{name}@{digest}"
