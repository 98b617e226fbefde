"""Names of images: which registry, whose, which digest."""

import re
from dataclasses import dataclass

from orchestrator.errors import Code, SlipstreamError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Nothing that a program could take for an option of its own.
_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.:/-]*?)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>\S+))?", re.ASCII
)


@dataclass(frozen=True)
class ImageName:
    """`repository` is with the registry, as it was given."""

    repository: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    def at(self, digest: str) -> str:
        """The image of that digest, whatever the tag names by now."""
        return f"{self.repository}@{digest}"

    @property
    def owner(self) -> str | None:
        """The account in the registry: `ghcr.io/OWNER/slipstream`; None where the name has none."""
        first, _, rest = self.repository.partition("/")
        is_registry = rest and ("." in first or ":" in first or first == "localhost")
        owner, slash, _ = (rest if is_registry else self.repository).partition("/")
        return owner if slash else None


def parse_name(text: str) -> ImageName:
    """Read `[REGISTRY/]PATH[:TAG][@DIGEST]`. Raises SlipstreamError that names what is none."""
    found = _NAME.fullmatch(text)
    # A colon before a slash is that of a port.
    if found is None or (found["digest"] and not DIGEST.fullmatch(found["digest"])):
        raise SlipstreamError(
            Code.INVALID_REQUEST,
            f"{text!r} is no name of an image",
            hint="expected such as ghcr.io/OWNER/slipstream:latest-cpu, or NAME@sha256: and 64 hex digits",
        )
    return ImageName(found["repository"], found["tag"], found["digest"])
