"""The real `cosign` with a key pair of a test's own. It signs without Sigstore's services: none is asked."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import must
from tests.support.debian import debian_program

_SECONDS = 60


@dataclass(frozen=True)
class Cosign:
    """`home` keeps what cosign writes, keys included."""

    program: Path
    home: Path

    @property
    def public_key(self) -> Path:
        return self.home / "cosign.pub"

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which `cosign` is found, and leaves the user's own folder alone."""
        path = f"{self.program.parent}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "HOME": str(self.home), "COSIGN_PASSWORD": ""}

    def sign(self, image: str) -> None:
        """Sign an image by its digest."""
        self.run("sign", "--key", "cosign.key", "--signing-config", "no-services.json", "--yes", image)

    def run(self, *arguments: str) -> str:
        """Standard output of a command that must succeed."""
        return must([self.program, *arguments], env=self.environment, folder=self.home, timeout_seconds=_SECONDS)


def make_cosign(home: Path) -> Cosign:
    """`cosign` with a new key pair in `home`; skips the test where the program cannot be had."""
    home.mkdir(parents=True)
    # Older ones know neither signing configurations nor the signatures of newer ones.
    cosign = Cosign(debian_program("cosign", any_version=False), home)
    cosign.run("generate-key-pair")
    (home / "no-services.json").write_text(cosign.run("signing-config", "create"))
    return cosign
