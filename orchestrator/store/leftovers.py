"""What killed processes have left: abandoned partial fetches, files that were never renamed, old quarantine."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.gguf.output import BESIDE
from orchestrator.store.blobs import GRAFTS_FOLDER, NAME_FOLDERS, OLD_WORKSHOP, PARTIAL_FOLDER
from orchestrator.store.disk import disk_bytes, entries_in, folders_in, try_lock
from orchestrator.store.quarantine import quarantine_folder

# What somebody is making has no name or no reference yet.
GRACE_SECONDS = 600.0
_PARTIAL_SECONDS = 86_400.0
_QUARANTINE_SECONDS = 7 * 86_400.0


def leftovers(root: Path) -> Iterator[Path]:
    """Files and folders that could go now."""
    for folder in folders_in(root / PARTIAL_FOLDER):
        if idle_seconds(folder) > _PARTIAL_SECONDS:
            yield folder
    for path in entries_in(quarantine_folder(root)):
        if _quarantined_seconds(path) > _QUARANTINE_SECONDS:
            yield path
    for top in (*NAME_FOLDERS, "blobs", "records", "refs", GRAFTS_FOLDER):
        for parent, folders, files in os.walk(root / top):
            found = [name for name in files if name.startswith(BESIDE)]
            found += [name for name in folders if name.startswith(OLD_WORKSHOP)]
            yield from (path for name in sorted(found) if is_settled(path := Path(parent, name)))


def remove_leftover(path: Path) -> int:
    """Bytes that went with a leftover; 0 while somebody works on it."""
    size_bytes = disk_bytes(path)
    if not path.is_dir():
        with suppress(FileNotFoundError):
            path.unlink()
            return size_bytes
        return 0
    # Who works on a partial fetch locks its file; version 0.1 locked the folder.
    lock = path / "lock" if (path / "lock").exists() else path
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        if not try_lock(fd) or (path.parent.name == PARTIAL_FOLDER and idle_seconds(path) <= _PARTIAL_SECONDS):
            return 0
        shutil.rmtree(path)
        return size_bytes
    finally:
        os.close(fd)


def is_settled(path: Path) -> bool:
    """Whether its entry has not changed lately: neither bytes, nor name, nor mode."""
    with suppress(OSError):
        return time.time() - path.lstat().st_ctime > GRACE_SECONDS
    return False


def idle_seconds(path: Path) -> float:
    """Seconds since anything in a folder was written; 0 where it has gone."""
    times = []
    for place in (str(path), *(os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names)):
        with suppress(OSError):
            times.append(os.lstat(place).st_mtime)
    return time.time() - max(times) if times else 0.0


def _quarantined_seconds(path: Path) -> float:
    """Age of the note beside wrong bytes: they themselves are as old as their fetch."""
    note = path if path.suffix == ".json" else path.with_name(f"{path.name}.json")
    for place, is_note in ((note, True), (path, False)):
        with suppress(OSError):
            facts = place.lstat()
            return time.time() - (facts.st_mtime if is_note else facts.st_ctime)
    return 0.0
