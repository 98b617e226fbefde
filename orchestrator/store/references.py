"""Who needs which file of the store."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from orchestrator.gguf.model import shard_names
from orchestrator.schemas import StoreView
from orchestrator.store.blobs import GRAFTS_FOLDER, Blobs
from orchestrator.store.layout import Layout, Place


class Reference(NamedTuple):
    """Who needs a file, there or not. A shard stands for all of its siblings."""

    where: Path | Place
    reason: str
    """`model NAME`, `server NAME`."""


References: TypeAlias = Callable[[], Iterable[Reference]]
"""Everything that is needed now; asked again right before something is removed.

It raises rather than leave out what it cannot tell: a model file with an error in it still needs its files, and so does
a job that brings some.
"""

_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")
_LONGEST_CHAIN = 40


class Kept:
    """What references keep, by name and by content.

    A graft that is needed keeps the base and the donor that its `graft.json` names by sha256, under all their names:
    without them it could not be made again.
    """

    def __init__(self, blobs: Blobs, references: Iterable[Reference]) -> None:
        self._blobs = blobs
        self._root = Path(os.path.realpath(blobs.root))
        self._names: defaultdict[Path, set[str]] = defaultdict(set)
        self._contents: defaultdict[str, set[str]] = defaultdict(set)
        self._grafts: defaultdict[str, set[str]] = defaultdict(set)
        self._parts: defaultdict[str, set[str]] = defaultdict(set)
        self._commits: set[tuple[str, str]] = set()
        for where, reason in references:
            files = where.files if isinstance(where, Place) else _all_shards(where)
            for hop in (hop for file in files for hop in _hops(file)):
                self._keep(hop, reason)
        for key in self._grafts:
            for sha256 in _digests_in(self._root / GRAFTS_FOLDER / key / "graft.json"):
                self._parts[sha256].add(f"graft {key}")

    def reasons(self, name: Path) -> set[str]:
        """Who needs a name; empty for nobody."""
        own = self._names.get(_canonical(name), set())
        parts = name.relative_to(self._blobs.root).parts
        if parts[0] == GRAFTS_FOLDER:
            return own | self.graft_reasons(parts[1])
        sha256 = self._blobs.target(name)
        return own | (self._parts.get(sha256, set()) if sha256 else set())

    def content_reasons(self, sha256: str) -> set[str]:
        """Who needs a blob, by whatever name."""
        return self._contents.get(sha256, set()) | self._parts.get(sha256, set())

    def graft_reasons(self, key: str) -> set[str]:
        """Who needs a graft."""
        return self._grafts.get(key, set())

    def needs_commit(self, repository: str, commit: str) -> bool:
        """Whether a file of a repository at a commit is needed."""
        return (repository, commit) in self._commits

    def _keep(self, hop: Path, reason: str) -> None:
        self._names[hop].add(reason)
        if not hop.is_relative_to(self._root):
            return
        match hop.relative_to(self._root).parts:
            case ("blobs", sha256):
                self._contents[sha256].add(reason)
            case (str(folder), str(key), *_) if folder == GRAFTS_FOLDER:
                self._grafts[key].add(reason)
            case ("hf", owner, name, commit, *_):
                self._commits.add((f"{owner}/{name}", commit))


def inventory(layout: Layout, references: Iterable[Reference]) -> StoreView:
    """What the store holds, and who needs it."""
    blobs = Blobs(layout.root)
    kept = Kept(blobs, references)
    files = []
    for file in blobs.files():
        reasons = set().union(*(kept.reasons(blobs.root / name) for name in file.names))
        reasons |= kept.content_reasons(file.sha256) if file.sha256 else set()
        files.append(file.model_copy(update={"references": tuple(sorted(reasons))}))
    return StoreView(
        files=tuple(files), size_bytes=sum(file.size_bytes for file in files), partial_bytes=blobs.partial_bytes()
    )


def _all_shards(path: Path) -> tuple[Path, ...]:
    return tuple(path.parent / name for name in shard_names(path.name))


def _hops(path: Path) -> Iterator[Path]:
    """A path and what its links lead to, one link at a time: a link in the middle is as needed as its ends."""
    for _ in range(_LONGEST_CHAIN):
        path = _canonical(path)
        yield path
        try:
            path = path.parent / os.readlink(path)
        except OSError:
            return


def _canonical(path: Path) -> Path:
    """The path without links in its folders; the last part may be one."""
    return Path(os.path.realpath(path.parent)) / path.name


def _digests_in(file: Path) -> Iterable[str]:
    try:
        return _SHA256.findall(file.read_text())
    except (OSError, UnicodeDecodeError):
        return ()
