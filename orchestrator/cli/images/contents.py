"""Whether labels, tag, files and the server of an image tell the same story."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli.images.checks import Check, differences, failed, not_checked, passed
from orchestrator.cli.images.inside import SERVER_LABEL, Inside
from orchestrator.cli.images.names import ImageName
from orchestrator.cli.images.patches import series_digest, series_name

PATCHES_LABEL = "slipstream.patch-digest"
VARIANT_LABEL = "slipstream.variant"
ARCHITECTURES_LABEL = "slipstream.architectures"
NO_SERVER = "there is no llama-server in it"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UNKNOWN = "unknown"  # what the Dockerfile writes without the argument
_SHORT = 8
# `b11434-p54e632fc-cuda`: the pin, the first digits of the digest, the variant.
_TAG = re.compile(rf"b\d+-p([0-9a-f]{{{_SHORT}}})-.+")
_STAMP = re.compile(rf"-p([0-9a-f]{{{_SHORT}}})\b")
_SEPARATORS = re.compile(r"[;,\s]+")

Labels = Mapping[str, str]


def check_patches(name: ImageName, labels: Labels, patches: Path | None) -> Check:
    """The label against the tag, and against a series where one is given. Raises SlipstreamError for a bad series."""
    label = labels.get(PATCHES_LABEL, "")
    if label in ("", _UNKNOWN) and not labels.get(SERVER_LABEL):
        return not_checked("patches", NO_SERVER)
    if not _DIGEST.fullmatch(label):
        return failed(
            "patches",
            f"the label {PATCHES_LABEL} is {label or 'missing'}, expected a sha256 (scripts/images writes it)",
        )
    shorts, digests = [("the label", label[:_SHORT])], [("the label", label)]
    if tag := _TAG.fullmatch(name.tag or ""):
        shorts.append(("the tag", tag[1]))
    if patches is not None:
        series = series_name(patches, labels.get(VARIANT_LABEL, "").partition("-")[0])
        digests.append((str(patches / series), series_digest(patches, series)))
    if wrong := [*differences(shorts), *differences(digests)]:
        return failed("patches", "; ".join(wrong))
    held = [*shorts, *digests[1:]]
    if len(held) == 1:
        return not_checked("patches", f"the label says p{label[:_SHORT]}; --patches DIR holds it against a checkout")
    return passed("patches", f"p{label[:_SHORT]} by {_enumerated(held)}")


def check_server(labels: Labels, inside: Inside) -> Check:
    """/versions.json and `llama-server --version` against the labels."""
    built = inside.versions.get("llama_cpp")
    built = built if isinstance(built, dict) else {}
    stamp = _STAMP.search(inside.said)
    label = labels.get(PATCHES_LABEL, "")
    patches = [("the label", label), ("/versions.json", str(built.get("patches_sha256") or ""))]
    shorts = [("the label", label[:_SHORT]), ("llama-server --version", stamp[1] if stamp else "")]
    written = str(inside.versions.get("variant") or "")
    variants = [("the label", labels.get(VARIANT_LABEL, "")), ("/versions.json", written)]
    if wrong := list(differences(patches)) or list(differences(shorts)):
        return failed("server", f"patches: {'; '.join(wrong)}")
    if wrong := list(differences(variants)):
        return failed("server", f"variant: {'; '.join(wrong)}")
    if not stamp:
        return failed("server", "neither the label nor llama-server --version names a patch set")
    return passed(
        "server", f"/versions.json and llama-server --version say {built.get('stamp') or stamp[0][1:]}, as the label"
    )


def check_architectures(labels: Labels, inside: Inside) -> Check:
    """The GPU architectures of label and /versions.json; of ROCm's, the code objects in the library."""
    label = [one for one in _SEPARATORS.split(labels.get(ARCHITECTURES_LABEL, "")) if one]
    listed: Any = inside.versions.get("architectures") or []
    held = [("the label", " ".join(sorted(label))), ("/versions.json", " ".join(sorted(map(str, listed))))]
    if inside.gpu_targets is not None:
        held.append(("the code in libggml-hip.so", " ".join(sorted(inside.gpu_targets))))
    if wrong := list(differences(held)):
        return failed("architectures", "; ".join(wrong))
    return passed("architectures", f"{' '.join(label) or 'none, it is for the CPU'}, by {_enumerated(held)}")


def _enumerated(held: list[tuple[str, str]]) -> str:
    return " and ".join(what for what, _ in held)
