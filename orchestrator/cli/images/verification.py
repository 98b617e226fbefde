"""All checks of an image, one after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.images.attached import Attached, read_attached, resolve
from orchestrator.cli.images.attestations import check_provenance, check_sbom
from orchestrator.cli.images.checks import Check, Status, failed, not_checked, passed
from orchestrator.cli.images.contents import NO_SERVER, check_architectures, check_patches, check_server
from orchestrator.cli.images.inside import LocalImage, find_local, look_inside, pull
from orchestrator.cli.images.names import ImageName
from orchestrator.cli.images.programs import Programs
from orchestrator.cli.images.signature import Signer, check_signature
from orchestrator.errors import Code, SlipstreamError

_INSIDE = ("server", "architectures")
_NOT_PUSHED = "it has not been pushed (--local)"


@dataclass(frozen=True)
class Verification:
    """What to check, and against what."""

    programs: Programs
    name: ImageName
    signer: Signer
    patches: Path | None = None
    pulls: bool = False

    def remote(self, digest: str) -> Iterator[Check]:
        """Checks of an image in a registry, under the digest that its name was resolved to."""
        image = read_attached(self.programs, self.name, digest)
        yield self._digest(digest)
        signature = check_signature(self.programs, self.name, image, self.signer)
        yield signature
        yield check_sbom(image)
        yield check_provenance(image)
        yield check_patches(self.name, _common_labels(image), self.patches)
        if signature.status is not Status.PASSED:
            yield from _unseen("its signature is not good, so nothing of it is run")
            return
        try:
            local = find_local(self.programs, self.name.at(digest))
            if local is None and self.pulls:
                pull(self.programs, self.name, digest)
                local = find_local(self.programs, self.name.at(digest))
        except SlipstreamError as error:
            # Without an engine an image can be proven, and not be looked into.
            outcome = failed if self.pulls else not_checked
            yield from (outcome(check, error.message) for check in _INSIDE)
            return
        if local is None:
            yield from _unseen("it is not on this machine; --pull brings it")
        else:
            yield from self._inside(local)

    def local(self) -> Iterator[Check]:
        """Checks of an image that this machine has and no registry."""
        image = find_local(self.programs, str(self.name))
        if image is None:
            raise SlipstreamError(Code.NOT_FOUND, f"there is no image {self.name} on this machine")
        yield passed("digest", f"{self.name} is {image.id} here")
        for check in ("signature", "sbom", "provenance"):
            yield not_checked(check, _NOT_PUSHED)
        yield check_patches(self.name, image.labels, self.patches)
        yield from self._inside(image)

    def resolve(self) -> str:
        """The digest that the name has now."""
        return resolve(self.programs, self.name)

    def _digest(self, digest: str) -> Check:
        """What this machine has under the name, if anything, against the registry."""
        try:
            here = find_local(self.programs, str(self.name))
        except SlipstreamError as error:
            return passed("digest", f"{self.name} is {digest} in the registry; {error.message}")
        if here is None:
            return passed("digest", f"{self.name} is {digest} in the registry; not on this machine")
        if digest in here.digests:
            return passed("digest", f"{self.name} is {digest}, in the registry and on this machine")
        held = " ".join(here.digests) or f"{here.id}, never pulled or pushed"
        return failed("digest", f"{self.name} is {digest} in the registry and {held} on this machine: docker pull")

    def _inside(self, image: LocalImage) -> Iterator[Check]:
        if not image.server:
            yield from _unseen(NO_SERVER)
            return
        try:
            inside = look_inside(self.programs, image)
        except SlipstreamError as error:
            yield from (failed(check, error.message) for check in _INSIDE)
            return
        yield check_server(image.labels, inside)
        yield check_architectures(image.labels, inside)


def _unseen(reason: str) -> Iterator[Check]:
    yield from (not_checked(check, reason) for check in _INSIDE)


def _common_labels(image: Attached) -> Mapping[str, str]:
    """The labels that every platform has alike."""
    names = {name for platform in image.platforms.values() for name in platform.labels}
    return {name: image.label(name) for name in names}
