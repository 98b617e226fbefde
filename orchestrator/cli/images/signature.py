"""Who has signed an image: asked of `cosign`, about the digest.

Without a key or an identity the workflow of the repository that the image names as its source is expected. That name is
a label, and who makes an image writes its labels: so it counts only where its owner is the owner in the image's name,
which whoever runs this has typed.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.images.attached import Attached
from orchestrator.cli.images.checks import Check, failed, passed
from orchestrator.cli.images.names import ImageName
from orchestrator.cli.images.programs import HINTS, Programs
from orchestrator.errors import SlipstreamError

NAME = "signature"
SOURCE_LABEL = "org.opencontainers.image.source"
GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = ".github/workflows/images.yml"
COSIGN_SECONDS = 120
# How cosign names the identity, or the issuer, of a signature that does not match.
_FOUND = re.compile(r'got "([^"]+)"')
_GITHUB = re.compile(r"https://github\.com/([A-Za-z0-9-]+)/([\w.-]+?)(?:\.git)?/?", re.ASCII)


@dataclass(frozen=True)
class Signer:
    """Who may have signed: the holder of a key, else an identity (a regular expression of the whole) of an issuer."""

    key: Path | None = None
    identity: str = ""
    issuer: str = GITHUB_ISSUER

    def argv(self, image: str) -> list[str]:
        """The question."""
        if self.key is not None:
            # The key is what proves it; whether the signature is logged too is not the question.
            proof = ["--key", str(self.key), "--insecure-ignore-tlog=true"]
        else:
            proof = ["--certificate-identity-regexp", self.identity, "--certificate-oidc-issuer", self.issuer]
        return ["cosign", "verify", "--output", "json", *proof, image]


def whole(regex: str) -> str:
    """An expression that matches all of an identity: cosign looks for a part."""
    return f"^(?:{regex})$"


def default_identity(name: ImageName, source: str) -> str:
    """The workflow of the repository that the label names, on its main branch or a tag.

    Raises ValueError that says why the label does not count.
    """
    found = _GITHUB.fullmatch(source)
    if found is None:
        raise ValueError(
            f"the label {SOURCE_LABEL} is {source or 'missing'}, expected https://github.com/OWNER/REPOSITORY"
        )
    owner, repository = found[1], found[2]
    if owner.lower() != (name.owner or "").lower():
        raise ValueError(
            f"the image names {owner}'s repository as its source, and lies with {name.owner or 'nobody'} in the "
            "registry: a label alone proves nothing"
        )
    address = f"https://github.com/{owner}/{repository}/{WORKFLOW}".replace(".", r"\.")
    return f"^{address}@refs/(heads/main|tags/.*)$"


def check_signature(programs: Programs, name: ImageName, image: Attached, signer: Signer) -> Check:
    """Ask cosign. Whatever keeps it from an answer is a failure."""
    origin = ""
    if signer.key is None and not signer.identity:
        origin = ", told from the image's source and its owner in the registry"
        try:
            signer = Signer(None, default_identity(name, image.label(SOURCE_LABEL)), signer.issuer)
        except ValueError as error:
            return failed(NAME, f"{error}; say with --identity or --key who may have signed")
    try:
        ended = programs.run(signer.argv(name.at(image.digest)), COSIGN_SECONDS)
    except SlipstreamError as error:
        return failed(NAME, f"{error.message}. {error.hint or ''}".strip())
    wanted = f"the key {signer.key}" if signer.key else f"an identity that matches {signer.identity}"
    if ended.status:
        return failed(NAME, _failure(ended.reason, wanted))
    try:
        signed = json.loads(ended.out)
        digests = {one["critical"]["image"]["docker-manifest-digest"] for one in signed}
        subjects = sorted({(one.get("optional") or {}).get("Subject") or "" for one in signed} - {""})
    except (ValueError, KeyError, TypeError):
        return failed(NAME, f"cosign gave an answer of another shape than expected. {HINTS['cosign']}")
    # cosign compares them too.
    if digests != {image.digest}:
        return failed(NAME, f"cosign speaks of {', '.join(sorted(digests)) or 'nothing'}, expected {image.digest}")
    if signer.key is not None:
        return passed(NAME, f"by the key {signer.key}; no transparency log was asked")
    # cosign names the subject of signatures of cosign 2 only.
    who = f"{', '.join(subjects)}, which matches {signer.identity}" if subjects else wanted
    return passed(NAME, f"by {who} of {signer.issuer}{origin}")


def _failure(reason: str, wanted: str) -> str:
    if "no signatures found" in reason:
        return "not signed, or by a newer cosign: cosign 2 does not see signatures of cosign 3"
    if found := _FOUND.search(reason):
        return f"signed, but with {found[1]}; expected {wanted}"
    if "trusted root" in reason or "TUF" in reason:
        return f"Sigstore's trust root could not be fetched, so nothing is known of {wanted}: {reason}"
    if "no matching" in reason:
        return f"signed, but not by {wanted}: {reason}"
    return f"cosign could not say whether {wanted} has signed: {reason}"
