"""SBOM and provenance: there, of every platform, and saying what they should."""

import re
from collections.abc import Iterator
from typing import Any

from orchestrator.cli.images.attached import Attached, Platform
from orchestrator.cli.images.checks import Check, failed, passed

REVISION_LABEL = "org.opencontainers.image.revision"
VARIANT_LABEL = "slipstream.variant"
_ROCBLAS = re.compile(r"(lib)?rocblas\d*")
_BUILDKIT_METADATA = "https://mobyproject.org/buildkit@v1#metadata"


def check_sbom(image: Attached) -> Check:
    """An SPDX document for each platform, with packages; in a ROCm image rocBLAS is one of them."""
    found = []
    for platform, held in image.platforms.items():
        packages = _packages(held)
        if not packages:
            return failed("sbom", f"no SPDX document with packages is attached for {platform}")
        text = f"{platform}: SPDX, {len(packages)} package{'s' * (len(packages) != 1)}"
        if held.labels.get(VARIANT_LABEL, "").startswith("rocm"):
            named = [(n, v) for n, v in packages if _ROCBLAS.fullmatch(n)]
            if not named:
                return failed("sbom", f"{text}, and none is rocBLAS, which a ROCm image is to have")
            text += f", {' '.join(named[0]).strip()}"
        found.append(text)
    return passed("sbom", "; ".join(found))


def check_provenance(image: Attached) -> Check:
    """SLSA provenance for each platform, of the revision that the label names."""
    found = []
    for platform, held in image.platforms.items():
        if held.provenance is None:
            return failed("provenance", f"no SLSA provenance is attached for {platform}")
        label = held.labels.get(REVISION_LABEL, "")
        revisions = sorted(set(_revisions(held.provenance)))
        if revisions != [label] or label in ("", "unknown"):
            said = " and ".join(revisions) or "none"
            return failed(
                "provenance", f"{platform}: built from revision {said}, the label says {label or 'none'}; expected one"
            )
        found.append(f"{platform}: revision {label}, builder {_builder(held.provenance) or 'not named'}")
    return passed("provenance", "; ".join(found))


def _packages(platform: Platform) -> list[tuple[str, str]]:
    packages = (platform.sbom or {}).get("packages")
    if not isinstance(packages, list):
        return []
    named = [one for one in packages if isinstance(one, dict) and one.get("name")]
    return [(str(one["name"]), str(one.get("versionInfo") or "")) for one in named]


def _revisions(provenance: dict[str, Any]) -> Iterator[str]:
    """Revisions of the source in SLSA 0.2 and 1: of a context from git, or as the client of BuildKit names it."""
    sources = (
        _at(provenance, "invocation", "configSource", "digest", "sha1"),
        _at(provenance, "metadata", _BUILDKIT_METADATA, "vcs", "revision"),
        _at(provenance, "buildDefinition", "externalParameters", "configSource", "digest", "sha1"),
        _at(provenance, "runDetails", "metadata", "buildkit_metadata", "vcs", "revision"),
    )
    yield from (found for found in sources if found)


def _builder(provenance: dict[str, Any]) -> str:
    return _at(provenance, "builder", "id") or _at(provenance, "runDetails", "builder", "id")


def _at(document: Any, *path: str) -> str:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""
