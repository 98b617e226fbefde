"""What the hub has: repositories with commits, branches that move, files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class HubFile:
    """A file at a commit. Large ones (LFS) are redirected to the content host."""

    content: Path
    is_lfs: bool = True
    xet_hash: str | None = None
    claimed_sha256: str | None = None
    """What the hub says of it, if that is not true."""

    @cached_property
    def digest(self) -> str:
        """sha256 of its bytes."""
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def sha256(self) -> str:
        """What the hub says it is."""
        return self.claimed_sha256 or self.digest

    @cached_property
    def size_bytes(self) -> int:
        return self.content.stat().st_size

    @cached_property
    def oid(self) -> str:
        """What git would call its bytes; the content host's ETag."""
        return hashlib.sha1(self.digest.encode()).hexdigest()

    def siblings(self, path: str) -> dict[str, object]:
        """As `/api/models/...?blobs=true` lists it."""
        lfs = {"sha256": self.sha256, "size": self.size_bytes, "pointerSize": 134}
        entry = {"rfilename": path, "size": self.size_bytes, "blobId": self.oid}
        return entry | ({"lfs": lfs} if self.is_lfs else {})

    def tree(self, path: str) -> dict[str, object]:
        """As `/api/models/.../tree/...` lists it."""
        lfs = {"oid": self.sha256, "size": self.size_bytes, "pointerSize": 134}
        entry: dict[str, object] = {"type": "file", "path": path, "size": self.size_bytes, "oid": self.oid}
        xet = {"xetHash": self.xet_hash} if self.xet_hash else {}
        return entry | ({"lfs": lfs} if self.is_lfs else {}) | xet


@dataclass
class Repository:
    """Commits by id, branches and tags by name. Every change is a new commit."""

    name: str
    commits: dict[str, Mapping[str, HubFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    gate: str | None = None
    """None, `gated` (listed, not served) or `private` (denied to exist)."""
    readers: frozenset[str] = frozenset()
    """Tokens that may read it in spite of the gate."""

    def change(self, branch: str, files: Mapping[str, HubFile | None]) -> str:
        """Add, replace or (None) remove files on a branch; the new commit."""
        before = self.commits.get(self.branches.get(branch, ""), {})
        merged = dict(before) | dict(files)
        after = {path: file for path, file in sorted(merged.items()) if file is not None}
        told = f"{self.name} {len(self.commits)} {sorted(after)}"
        commit = hashlib.sha1(told.encode()).hexdigest()
        self.commits[commit] = after
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, tag or commit."""
        found = self.branches.get(revision) or self.tags.get(revision)
        return found or (revision if revision in self.commits else None)
