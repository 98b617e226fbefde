"""Toys made once a test session, by their knobs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.toys import Knobs, Language, write_architecture, write_hybrid, write_mtp, write_pair, write_replay


@dataclass(frozen=True)
class Toy:
    """A toy on disk and what it says; drafter is the file that drafts for it if it has no MTP block."""

    path: Path
    language: Language
    drafter: Path | None = None

    def draft_flags(self) -> list[str]:
        """The flags that make llama-server speculate with this toy."""
        if self.drafter is None:
            return ["--spec-type", "draft-mtp"]
        return ["--spec-type", "draft-simple", "--spec-draft-model", str(self.drafter)]


class ToyBox:
    """Makers of the toys; knobs are those of ``tests.toys.Knobs``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Toy] = {}

    def of(self, kind: str, **knobs: Any) -> Toy:
        """The toy of a kind: mtp, hybrid, pair or replay."""
        makers = {"mtp": self.mtp, "hybrid": self.hybrid, "pair": self.pair, "replay": self.replay}
        return makers[kind](**knobs)

    def mtp(self, **knobs: Any) -> Toy:
        return self._single("mtp", write_mtp, Knobs(**knobs))

    def hybrid(self, **knobs: Any) -> Toy:
        return self._single("hybrid", write_hybrid, Knobs(**knobs))

    def replay(self, **knobs: Any) -> Toy:
        """The replay toy with the drafter of the pair that has the same knobs."""
        toy = self._single("replay", write_replay, Knobs(**knobs))
        return Toy(toy.path, toy.language, self.pair(**knobs).drafter)

    def architecture(self, arch: str, heads: int = 1, **knobs: Any) -> Toy:
        """The toy of an architecture that has MTP blocks of its own, with that many of them."""
        return self._single(
            f"{arch}-{heads}", lambda path, its: write_architecture(arch, path, its, heads), Knobs(**knobs)
        )

    def pair(self, **knobs: Any) -> Toy:
        def make(path: Path) -> Toy:
            drafter = path.with_stem(f"{path.stem}-drafter")
            return Toy(path, write_pair(path, drafter, Knobs(**knobs)), drafter)

        return self._once("pair", Knobs(**knobs), make)

    def _single(self, kind: str, write: Callable[[Path, Knobs], Language], knobs: Knobs) -> Toy:
        return self._once(kind, knobs, lambda path: Toy(path, write(path, knobs)))

    def _once(self, kind: str, knobs: Knobs, make: Callable[[Path], Toy]) -> Toy:
        key = f"{kind} {knobs}"
        if key not in self._made:
            self._made[key] = make(self._directory / f"{kind}-{len(self._made)}.gguf")
        return self._made[key]
