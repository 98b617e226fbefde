"""Removes what nobody refers to: first a plan, then the work, with the references asked again for each removal.

Names go before their blob, the blob before its record, the record of a graft before its files: a kill at any instant
leaves a store in which everything that is there is whole.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.schemas import GcView, StoredFile
from orchestrator.store.blobs import GRAFTS_FOLDER, NAME_FOLDERS, Blobs
from orchestrator.store.disk import disk_bytes, disk_error, folders_in, locked
from orchestrator.store.layout import Layout
from orchestrator.store.leftovers import (
    GRACE_SECONDS,
    idle_seconds,
    is_settled,
    leftovers,
    remove_leftover,
)
from orchestrator.store.references import Kept, References
from orchestrator.store.refs import Refs


@dataclass(frozen=True)
class Content:
    """One content of which names, or all of it, would go. `sha256` is None for a file that is no blob."""

    sha256: str | None
    names: tuple[Path, ...]
    size_bytes: int
    goes: bool
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class GcPlan:
    """What nobody refers to."""

    root: Path
    contents: tuple[Content, ...]
    grafts: tuple[Path, ...]
    records: tuple[str, ...]
    refs: tuple[Path, ...]
    leftovers: tuple[Path, ...]
    """Abandoned partial fetches, old quarantine, files whose writer was killed."""

    def view(self) -> GcView:
        """The plan as the answer of a dry run."""
        files = [_told(self.root, content) for content in self.contents]
        files += [_told_graft(self.root, folder) for folder in self.grafts]
        freed = sum(content.size_bytes for content in self.contents if content.goes)
        freed += sum(disk_bytes(path) for path in (*self.grafts, *self.leftovers))
        return GcView(dry_run=True, removed=tuple(files), freed_bytes=freed)


def collect(layout: Layout, references: References, *, dry_run: bool) -> GcView:
    """Remove what nobody refers to, or only say what that is."""
    blobs = Blobs(layout.root)
    planned = plan(blobs, references)
    return planned.view() if dry_run else carry_out(blobs, planned, references)


def plan(blobs: Blobs, references: References) -> GcPlan:
    """What could be removed now. Touches nothing."""
    kept = Kept(blobs, references())
    return GcPlan(
        root=blobs.root,
        contents=tuple(_unneeded_contents(blobs, kept)),
        grafts=tuple(f for f in folders_in(blobs.root / GRAFTS_FOLDER) if _is_unneeded_graft(f, kept)),
        records=tuple(s for s in blobs.records() if not blobs.blob(s).exists() and is_settled(blobs.record_file(s))),
        refs=tuple(_unneeded_refs(blobs, kept)),
        leftovers=tuple(leftovers(blobs.root)),
    )


def carry_out(blobs: Blobs, planned: GcPlan, references: References) -> GcView:
    """Remove what was planned and is still needed by nobody; what was removed."""
    try:
        return _carry_out(blobs, planned, references)
    except OSError as e:
        raise disk_error(e, "the store") from e


def _carry_out(blobs: Blobs, planned: GcPlan, references: References) -> GcView:
    removed: list[StoredFile] = []
    freed_bytes = 0
    for content in planned.contents:
        if (done := _remove_content(blobs, content, references)) is not None:
            removed.append(_told(blobs.root, done))
            freed_bytes += done.size_bytes if done.goes else 0
    for folder in planned.grafts:
        told, size_bytes = _told_graft(blobs.root, folder), disk_bytes(folder)
        if _remove_graft(blobs, folder, references):
            removed.append(told)
            freed_bytes += size_bytes
    _remove_records(blobs, planned.records)
    _remove_refs(blobs, planned.refs, references)
    freed_bytes += sum(remove_leftover(path) for path in planned.leftovers)
    _prune(blobs.root)
    return GcView(dry_run=False, removed=tuple(removed), freed_bytes=freed_bytes)


def _unneeded_contents(blobs: Blobs, kept: Kept) -> Iterator[Content]:
    names: dict[str, list[Path]] = {sha256: [] for sha256 in blobs.digests()}
    there = set(names)
    for name in blobs.names():
        if name.is_relative_to(blobs.root / GRAFTS_FOLDER):
            continue
        if (sha256 := blobs.target(name)) is not None:
            names.setdefault(sha256, []).append(name)
        elif not name.is_symlink() and not kept.reasons(name):
            yield Content(None, (name,), _size_bytes(name), goes=True)
    for sha256, its_names in names.items():
        gone = tuple(name for name in its_names if not kept.reasons(name))
        is_needed = kept.content_reasons(sha256) or len(gone) < len(its_names)
        # A blob that never had a name may be about to get one.
        goes = sha256 in there and not is_needed and (bool(gone) or is_settled(blobs.blob(sha256)))
        if gone or goes:
            record = blobs.record(sha256)
            size = _size_bytes(blobs.blob(sha256))
            yield Content(sha256, gone, size, goes, record.origins if record else ())


def _remove_content(blobs: Blobs, content: Content, references: References) -> Content | None:
    """Remove what of a content is still unneeded; that part of it, None for nothing."""
    with locked(blobs.root):
        kept = Kept(blobs, references())
        removed = []
        for name in content.names:
            # Another file may have the name by now.
            if name.is_symlink() == (content.sha256 is None) or blobs.target(name) != content.sha256:
                continue
            if not kept.reasons(name):
                name.unlink(missing_ok=True)
                removed.append(name)
        goes = content.goes and (content.sha256 is None or _remove_blob(blobs, content.sha256, kept))
    return replace(content, names=tuple(removed), goes=goes) if removed or goes else None


def _remove_blob(blobs: Blobs, sha256: str, kept: Kept) -> bool:
    if kept.content_reasons(sha256) or any(blobs.target(name) == sha256 for name in blobs.names()):
        return False
    blobs.blob(sha256).unlink(missing_ok=True)
    blobs.record_file(sha256).unlink(missing_ok=True)
    return True


def _is_unneeded_graft(folder: Path, kept: Kept) -> bool:
    if kept.graft_reasons(folder.name):
        return False
    # One without a record may be in the making.
    return (folder / "graft.json").is_file() or idle_seconds(folder) > GRACE_SECONDS


def _remove_graft(blobs: Blobs, folder: Path, references: References) -> bool:
    with locked(blobs.root):
        if not folder.exists() or not _is_unneeded_graft(folder, Kept(blobs, references())):
            return False
        (folder / "graft.json").unlink(missing_ok=True)
        shutil.rmtree(folder)
    return True


def _remove_records(blobs: Blobs, records: Collection[str]) -> None:
    for sha256 in records:
        with locked(blobs.root):
            if not blobs.blob(sha256).exists():
                blobs.record_file(sha256).unlink(missing_ok=True)


def _unneeded_refs(blobs: Blobs, kept: Kept) -> Iterator[Path]:
    for file, repository, commit in Refs(blobs.root).files():
        if (commit is None or not kept.needs_commit(repository, commit)) and is_settled(file):
            yield file


def _remove_refs(blobs: Blobs, refs: Collection[Path], references: References) -> None:
    if not refs:
        return
    with locked(blobs.root):
        for file in set(refs).intersection(_unneeded_refs(blobs, Kept(blobs, references()))):
            file.unlink(missing_ok=True)


def _prune(root: Path) -> None:
    """Remove empty folders of names; whoever makes one and puts a name into it holds the lock."""
    with locked(root):
        for folder in (*NAME_FOLDERS, "refs"):
            for parent, folders, _ in os.walk(root / folder, topdown=False):
                for name in folders:
                    with suppress(OSError):
                        os.rmdir(os.path.join(parent, name))


def _told(root: Path, content: Content) -> StoredFile:
    names = tuple(str(name.relative_to(root)) for name in content.names)
    return StoredFile(sha256=content.sha256, size_bytes=content.size_bytes, names=names, origins=content.origins)


def _told_graft(root: Path, folder: Path) -> StoredFile:
    names = tuple(str(path.relative_to(root)) for path in sorted(folder.glob("*.gguf")))
    return StoredFile(sha256=None, size_bytes=disk_bytes(folder), names=names)


def _size_bytes(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
