"""What a registry has of an image: labels, SBOM and provenance of each platform. Nothing is pulled.

Everything but the digest itself is asked by digest, and the tools compare what comes with the digests that lead there:
who has signed the digest has signed all of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.images.names import DIGEST, ImageName
from orchestrator.cli.images.programs import Programs
from orchestrator.errors import Code, SlipstreamError

Json = dict[str, Any]

REGISTRY_SECONDS = 120
_TEMPLATE = '{"image":{{json .Image}},"sbom":{{json .SBOM}},"provenance":{{json .Provenance}}}'


@dataclass(frozen=True)
class Platform:
    """One platform of an image."""

    labels: Mapping[str, str]
    # The predicates of the attestations; None where there is none.
    sbom: Json | None
    provenance: Json | None


@dataclass(frozen=True)
class Attached:
    """An image in a registry, its platforms by name such as `linux/amd64`."""

    digest: str
    platforms: Mapping[str, Platform]

    def label(self, name: str) -> str:
        """The label that all platforms agree on; empty where they do not, or have none."""
        values = {platform.labels.get(name, "") for platform in self.platforms.values()}
        return values.pop() if len(values) == 1 else ""


def resolve(programs: Programs, name: ImageName) -> str:
    """The digest that a name has now. Raises SlipstreamError."""
    if name.digest:
        return name.digest
    digest = _inspect(programs, str(name), "{{json .Manifest}}").get("digest")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise SlipstreamError(Code.SOURCE_FAILED, f"the registry names no digest of {name}")
    return digest


def read_attached(programs: Programs, name: ImageName, digest: str) -> Attached:
    """What the registry has under a digest. Raises SlipstreamError."""
    return parse_attached(digest, _inspect(programs, name.at(digest), _TEMPLATE))


def parse_attached(digest: str, found: Json) -> Attached:
    """buildx's answer: of a single platform the thing itself, else by platform."""
    image = found.get("image") or {}
    single = "rootfs" in image or "config" in image
    name = f"{image.get('os', '?')}/{image.get('architecture', '?')}"
    images = {name: image} if single else image

    def of(kind: str, document: str, platform: str) -> Json | None:
        held = found.get(kind) or {}
        held = held if single else held.get(platform) or {}
        predicate = held.get(document)
        return predicate if isinstance(predicate, dict) else None

    platforms = {
        platform: Platform(
            (config.get("config") or {}).get("Labels") or {},
            of("sbom", "SPDX", platform),
            of("provenance", "SLSA", platform),
        )
        for platform, config in sorted(images.items())
    }
    if not platforms:
        raise SlipstreamError(Code.SOURCE_FAILED, f"{digest} is no image that runs anywhere: it has no platform")
    return Attached(digest, platforms)


def _inspect(programs: Programs, name: str, template: str) -> Json:
    argv = ["docker", "buildx", "imagetools", "inspect", name, "--format", template]
    ended = programs.run(argv, REGISTRY_SECONDS)
    if ended.status:
        raise SlipstreamError(
            Code.SOURCE_FAILED,
            f"the registry was asked for {name}: {ended.reason}",
            hint="docker login, if it is private; --local for an image that has not been pushed",
        )
    try:
        found = json.loads(ended.out)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SlipstreamError(Code.SOURCE_FAILED, f"docker buildx gave no JSON for {name}")
    return found
