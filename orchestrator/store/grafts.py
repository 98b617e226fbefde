"""Grafts of the store: made once from a base and a donor, found again by what those were."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.gguf.model import shard_stem
from orchestrator.store.blobs import GRAFTS_FOLDER
from orchestrator.store.disk import folders_in, write_beside
from orchestrator.store.layout import Layout, Place

# Counted up when the same base and donor would give other bytes.
FORMAT = 1
RECORD = "graft.json"
_KEY_DIGITS = 16
# A blob of this store, or of Ollama's or the hub client's: its name is its digest.
_BLOB = re.compile(r"(sha256-)?[0-9a-f]{64}")


@dataclass(frozen=True)
class GraftPlace:
    """Where a graft lies, there or not."""

    folder: Path
    path: Path

    @property
    def is_present(self) -> bool:
        """Whether it has been made: the record is written last."""
        return self.path.is_file() and (self.folder / RECORD).is_file()

    def record(self, base: Place, donor: Place) -> None:
        """Say what it was made from; with this it counts as made."""
        made_from = {"format": FORMAT, "base": _identities(base), "donor": _identities(donor)}
        write_beside(self.folder / RECORD, json.dumps(made_from, indent=1).encode())


def graft_place(layout: Layout, base: Place, donor: Place) -> GraftPlace:
    """The place of the graft of two sources whose files are there; OSError where they are not."""
    content = json.dumps([FORMAT, _identities(base), _identities(donor)])
    folder = layout.root / GRAFTS_FOLDER / hashlib.sha256(content.encode()).hexdigest()[:_KEY_DIGITS]
    return GraftPlace(folder, folder / _name(base.path.name))


def grafts_onto(layout: Layout, base_name: str) -> Iterator[Path]:
    """Every graft there is onto a base of this name: one of them is meant where the base itself is not there."""
    for folder in folders_in(layout.root / GRAFTS_FOLDER):
        if (path := folder / _name(base_name)).is_file():
            yield path


def _name(base_name: str) -> str:
    return f"{shard_stem(base_name)}-MTP.gguf"


def _identities(place: Place) -> list[str]:
    return [_identity(path) for path in place.files]


def _identity(path: Path) -> str:
    """What a file is: the name of its blob, which is its digest; elsewhere name, size and time of change."""
    real = Path(os.path.realpath(path))
    if real.parent.name == "blobs" and _BLOB.fullmatch(real.name):
        return real.name
    stat = real.stat()
    return f"{real.name} {stat.st_size} {stat.st_mtime_ns}"
