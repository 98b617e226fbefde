"""Files in a store, and an ear for progress."""

import hashlib
from collections import Counter
from pathlib import Path

from orchestrator.store.blobs import Blobs


class Told:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None, str | None]] = []
        self.before: list[int] = []
        """What had been done of each phase when it began."""
        self.done: list[int] = []
        self.lines: list[str] = []
        self.downloaded_bytes: Counter[str] = Counter()

    def phase(self, name: str, total_bytes: int | None = None, file: str | None = None, done_bytes: int = 0) -> None:
        self.phases.append((name, total_bytes, file))
        self.before.append(done_bytes)

    def advance(self, done_bytes: int) -> None:
        self.done.append(done_bytes)

    def downloaded(self, source: str, count_bytes: int) -> None:
        self.downloaded_bytes[source] += count_bytes

    def line(self, text: str) -> None:
        self.lines.append(text)


def store(blobs: Blobs, content: bytes, *names: str, origin: str = "hf o/n") -> str:
    """Put a content into a store under names relative to its root; its digest."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = blobs.root / "partial" / sha256[:8] / "data"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    blobs.adopt(path, sha256, len(content), origin)
    path.parent.rmdir()
    for name in names:
        blobs.link(blobs.root / name, sha256)
    return sha256


def put(path: Path, content: bytes) -> Path:
    """A file of its own, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
