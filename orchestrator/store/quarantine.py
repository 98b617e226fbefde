"""Wrong bytes, kept for a look: `quarantine/<key>-<actual digest>` with a `.json` beside it that names both hashes."""

import json
import time
from pathlib import Path

from orchestrator.gguf.output import sync_folder
from orchestrator.store.disk import write_beside

_FOLDER = "quarantine"
_DIGEST_DIGITS = 12


def quarantine_folder(root: Path) -> Path:
    """Where a store keeps wrong bytes."""
    return root / _FOLDER


def set_aside(root: Path, path: Path, key: str, *, expected_sha256: str, actual_sha256: str, origin: str) -> str:
    """Move a file of the store into quarantine, in one step; its name there. OSError when that fails.

    The note is written first: nothing lies in quarantine without its hashes.
    """
    folder = quarantine_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{key}-{actual_sha256[:_DIGEST_DIGITS]}"
    note = {
        "expected_sha256": expected_sha256,
        "actual_sha256": actual_sha256,
        "size_bytes": path.stat().st_size,
        "origin": origin,
        "at": time.time(),
    }
    write_beside(place.with_name(f"{place.name}.json"), json.dumps(note, indent=1).encode())
    path.replace(place)
    sync_folder(folder)
    sync_folder(path.parent)
    return place.name
