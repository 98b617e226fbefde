"""The command line of `scripts/images`."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from image import building, engine
from image.building import Order
from image.facts import KINDS, images_of, kinds_and_variants, read_commit
from image.smoke import smoke
from llamacpp.pin import PinError

CHANGED_SHOWN = 5


def main() -> None:
    options = _parser().parse_args()
    match options.command:
        case "build" | "push":
            _build(options)
        case "manifest":
            if not options.print:
                engine.require()
            for name in building.join(options.file, dry=options.print):
                if name:
                    print(name)
        case "smoke":
            engine.require()
            smoke(options.image, options.variant, options.model)
        case "tags":
            _tags(options)


def _build(options: argparse.Namespace) -> None:
    pushes = options.command == "push"
    if pushes and not options.registry:
        raise PinError("push needs the registry: --registry PREFIX such as ghcr.io/someone; make push REGISTRY=PREFIX")
    images = images_of(options.variant or ["cpu"], options.kind)
    commit = read_commit(options.source)
    if pushes and not options.allow_dirty:
        _require_clean(commit.revision, commit.changed)
    if not options.print:
        engine.require()
    order = Order(
        commit,
        engine.builder(),
        platform=options.platform,
        registry=options.registry.rstrip("/") if pushes else "",
        tag="" if pushes else options.tag,
        by_digest=pushes and options.by_digest,
        attestations=pushes and options.attestations,
        sbom_generator=options.sbom_generator if pushes else "",
        cache_from=options.cache_from,
        cache_to=options.cache_to,
        arguments=options.build_arg,
    )
    order.check(images)
    made: list[dict[str, Any]] = []
    for image in images:
        # One cache for all: that of the last, which has the layers of those before.
        its_order = order if image is images[-1] else replace(order, cache_to=[])
        made.append(building.build(image, its_order, dry=options.print))
        # After each, so that what is pushed is told even if the next one fails.
        if options.metadata and not options.print:
            options.metadata.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    if pushes and not options.print:
        for one in made:
            print(f"{one['image']}@{one['digest']}")


def _tags(options: argparse.Namespace) -> None:
    prefix = options.registry.rstrip("/")
    images = images_of(options.variant or ["cpu"], options.kind)
    # The images of a variant have the same tags.
    for line in dict.fromkeys(f"{prefix}/{i.repository}:{tag}" if prefix else tag for i in images for tag in i.tags):
        print(line)


def _require_clean(revision: str, changed: tuple[str, ...]) -> None:
    if changed:
        more = f" and {len(changed) - CHANGED_SHOWN} more" if len(changed) > CHANGED_SHOWN else ""
        named = ", ".join(changed[:CHANGED_SHOWN])
        raise PinError(f"not committed: {named}{more}; commit, or push with --allow-dirty (the label says -dirty)")
    if revision == "unknown":
        raise PinError("this is no git checkout, so the images would not say what they are; --allow-dirty pushes them")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("variant", nargs="*", help=f"{kinds_and_variants()}, or such as rocm-gfx1030 (default: cpu)")
    which.add_argument("--kind", choices=[*KINDS, "all"], default="all", help="which of its images (default: all)")

    dry = argparse.ArgumentParser(add_help=False)
    dry.add_argument("--print", action="store_true", help="print the docker commands, run none of them")

    how = argparse.ArgumentParser(add_help=False, parents=[which, dry])
    how.add_argument("--platform", default="", help="such as linux/arm64 (default: the builder's own)")
    how.add_argument("--source", default="", metavar="URL", help="address of the source (default: git's origin)")
    how.add_argument("--cache-from", action="append", default=[], metavar="SPEC", help="as of docker buildx build")
    how.add_argument("--cache-to", action="append", default=[], metavar="SPEC", help="as of docker buildx build")
    how.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="of docker/Dockerfile")
    how.add_argument("--metadata", type=Path, metavar="FILE", help="write what was built, as JSON")

    build = commands.add_parser("build", parents=[how], help="build images for this engine")
    build.add_argument(
        "--tag", default="", metavar="NAME", help="what the one image is called (default: as compose.yaml)"
    )
    push = commands.add_parser("push", parents=[how], help="build images and push them")
    push.add_argument("--registry", default="", metavar="PREFIX", help="such as ghcr.io/someone")
    push.add_argument("--by-digest", action="store_true", help="without tags, for `manifest`")
    push.add_argument("--allow-dirty", action="store_true", help="though files differ from the commit")
    push.add_argument("--no-attestations", action="store_false", dest="attestations", help="no SBOM and no provenance")
    push.add_argument(
        "--sbom-generator", default="", metavar="IMAGE", help="what lists the packages (default: BuildKit's)"
    )

    manifest = commands.add_parser("manifest", parents=[dry], help="join what was pushed by digest under its tags")
    manifest.add_argument("file", nargs="+", type=Path, help="written by push --by-digest --metadata")

    tried = commands.add_parser("smoke", help="try an image out on the CPU")
    tried.add_argument("image")
    tried.add_argument("--variant", default="", help="what it should be (default: what its label says)")
    tried.add_argument("--model", type=Path, metavar="FILE", help="a GGUF to serve (default: a toy with an MTP block)")

    tags = commands.add_parser("tags", parents=[which], help="print the tags of a variant's images")
    tags.add_argument("--registry", default="", metavar="PREFIX", help="print whole names")
    return parser
