"""The store by content: a blob is named by the sha256 of its bytes, and every other name is a link to one."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.output import BESIDE, sync_folder
from orchestrator.schemas import StoredFile
from orchestrator.store.disk import beside, disk_bytes, disk_error, locked, write_beside
from orchestrator.store.quarantine import set_aside

# Folders of the store in which files have the names that their sources give them.
NAME_FOLDERS = ("hf", "pypi", "url")
GRAFTS_FOLDER = "grafts"
PARTIAL_FOLDER = "partial"
# Version 0.1 brought wheels into folders of this name, beside their member.
OLD_WORKSHOP = ".bring-"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY_DIGITS = 16


@dataclass(frozen=True)
class Record:
    """What is known of a blob. It holds while size and time of change are the blob's own."""

    sha256: str
    size_bytes: int
    origins: tuple[str, ...]
    verified: float
    mtime_ns: int

    def fits(self, facts: os.stat_result) -> bool:
        """Whether nobody has written to the blob since it was verified."""
        return facts.st_size == self.size_bytes and facts.st_mtime_ns == self.mtime_ns


class Blobs:
    """A store. Whatever it changes is whole at any instant, and two processes may change it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs"
        self._records = root / "records"

    def blob(self, sha256: str) -> Path:
        """Where the bytes with a digest lie, there or not."""
        if _SHA256.fullmatch(sha256) is None:
            raise SlipstreamError(Code.INVALID_REQUEST, f"{sha256!r} is no sha256, expected 64 hexadecimal digits")
        return self._blobs / sha256

    def record(self, sha256: str) -> Record | None:
        """What is known of a blob; None for nothing, or for what cannot be read."""
        try:
            document = json.loads(self.record_file(sha256).read_bytes())
            record = Record(**document | {"origins": tuple(document["origins"])})
            return record if record.sha256 == sha256 else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def record_file(self, sha256: str) -> Path:
        """Where the record of a blob lies."""
        return self._records / f"{self.blob(sha256).name}.json"

    def has(self, sha256: str) -> bool:
        """Whether the bytes with a digest are there, verified and untouched since."""
        record = self.record(sha256)
        try:
            return record is not None and record.fits(self.blob(sha256).stat())
        except OSError:
            return False

    def adopt(self, path: Path, sha256: str, size_bytes: int, origin: str) -> Path:
        """Make a file that was verified and is on disk a blob; `path` is gone then, and may be gone from a call before.

        Bytes that are there already, verified and untouched, stay; others under this digest are replaced.
        """
        blob = self.blob(sha256)
        try:
            with locked(self.root):
                if self.has(sha256) and (known := self.record(sha256)):
                    self._write(replace(known, origins=_with(known.origins, origin)))
                    path.unlink(missing_ok=True)
                    return blob
                facts = path.stat()
                if facts.st_size != size_bytes:
                    raise SlipstreamError(
                        Code.WRONG_BYTES, f"{path.name} has {facts.st_size} bytes, expected {size_bytes} ({origin})"
                    )
                path.chmod(0o444)
                self._blobs.mkdir(exist_ok=True)
                # Record first: a blob without one would not be trusted; a record without a blob says nothing.
                self._write(Record(sha256, size_bytes, (origin,), time.time(), facts.st_mtime_ns))
                path.replace(blob)
                sync_folder(self._blobs)
            return blob
        except OSError as e:
            raise disk_error(e, f"the file from {origin}") from e

    def link(self, name: Path, sha256: str) -> None:
        """Give a blob a name in the store, in place of what has that name now.

        SlipstreamError not_found when there is no such blob.
        """
        if not self._is_name(name):
            raise SlipstreamError(Code.INVALID_REQUEST, f"{name.name} would lie outside of {', '.join(NAME_FOLDERS)}")
        blob = self.blob(sha256)
        temporary = beside(name)
        try:
            with locked(self.root):
                if not blob.is_file():
                    raise SlipstreamError(Code.NOT_FOUND, f"the store has no bytes with sha256 {sha256}")
                name.parent.mkdir(parents=True, exist_ok=True)
                temporary.symlink_to(os.path.relpath(blob, name.parent))
                temporary.replace(name)
                sync_folder(name.parent)
        except OSError as e:
            with suppress(OSError):
                temporary.unlink()
            raise disk_error(e, name.name) from e

    def sha256_of(self, name: Path) -> str | None:
        """Digest of a file, without reading it; None unless it is a blob that was verified and is untouched since."""
        sha256 = self.target(name)
        return sha256 if sha256 is not None and self.has(sha256) else None

    def target(self, name: Path) -> str | None:
        """Digest in the name of the blob that a name leads to, there or not; None for a file that is no blob."""
        real = Path(os.path.realpath(name))
        is_blob = real.parent == Path(os.path.realpath(self._blobs)) and _SHA256.fullmatch(real.name)
        return real.name if is_blob else None

    def names(self) -> Iterator[Path]:
        """Every name in the store in order, of blobs and of files that lie there themselves; grafts too."""
        for folder in (*NAME_FOLDERS, GRAFTS_FOLDER):
            for parent, folders, files in os.walk(self.root / folder):
                folders[:] = sorted(f for f in folders if not f.startswith(OLD_WORKSHOP))
                for file in sorted(files):
                    if not file.startswith(BESIDE) and (folder != GRAFTS_FOLDER or file.endswith(".gguf")):
                        yield Path(parent, file)

    def digests(self) -> list[str]:
        """Digests of all blobs, in order."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._blobs) if _SHA256.fullmatch(name))
        return []

    def records(self) -> list[str]:
        """Digests that have a record, in order."""
        with suppress(FileNotFoundError):
            stems = (name.removesuffix(".json") for name in os.listdir(self._records))
            return sorted(stem for stem in stems if _SHA256.fullmatch(stem))
        return []

    def files(self) -> list[StoredFile]:
        """Every content of the store once, with all its names; files that are no blobs have no digest."""
        names: dict[str, list[str]] = {sha256: [] for sha256 in self.digests()}
        files: list[StoredFile] = []
        for name in self.names():
            relative = str(name.relative_to(self.root))
            sha256 = self.target(name)
            if sha256 is not None:
                if sha256 in names:
                    names[sha256].append(relative)
                continue
            with suppress(OSError):
                files.append(StoredFile(sha256=None, size_bytes=name.stat().st_size, names=(relative,)))
        for sha256, its_names in names.items():
            with suppress(OSError):
                files.append(self._stored(sha256, tuple(its_names)))
        return sorted(files, key=lambda file: (file.names or ("",), file.sha256 or ""))

    def partial_bytes(self) -> int:
        """Bytes on disk of fetches that have not ended; holes in their files do not count."""
        return disk_bytes(self.root / PARTIAL_FOLDER)

    def confirm(self, sha256: str, facts: os.stat_result) -> None:
        """Record that a blob was read, with these facts before and after, and is right."""
        with locked(self.root):
            known = self.record(sha256)
            self._write(Record(sha256, facts.st_size, known.origins if known else (), time.time(), facts.st_mtime_ns))

    def condemn(self, sha256: str, facts: os.stat_result, actual_sha256: str) -> tuple[str, tuple[str, ...]] | None:
        """Move a blob with these facts and other bytes into quarantine, so that all its names count as missing.

        Its name there, and the names it had; None when the blob has been replaced or removed meanwhile.
        """
        with locked(self.root):
            try:
                now = self.blob(sha256).stat()
            except FileNotFoundError:
                return None
            if (now.st_ino, now.st_size, now.st_mtime_ns) != (facts.st_ino, facts.st_size, facts.st_mtime_ns):
                return None
            record = self.record(sha256)
            names = [name for name in self.names() if self.target(name) == sha256]
            place = set_aside(
                self.root,
                self.blob(sha256),
                sha256[:_KEY_DIGITS],
                expected_sha256=sha256,
                actual_sha256=actual_sha256,
                origin=", ".join(record.origins) if record else "",
            )
            self.record_file(sha256).unlink(missing_ok=True)
            for name in names:
                name.unlink(missing_ok=True)
            return place, tuple(str(name.relative_to(self.root)) for name in names)

    def _stored(self, sha256: str, names: tuple[str, ...]) -> StoredFile:
        record = self.record(sha256)
        return StoredFile(
            sha256=sha256,
            size_bytes=self.blob(sha256).stat().st_size,
            names=names,
            origins=record.origins if record else (),
            verified=record.verified if record else None,
        )

    def _is_name(self, path: Path) -> bool:
        if not path.is_relative_to(self.root) or ".." in path.parts:
            return False
        parts = path.relative_to(self.root).parts
        return len(parts) > 1 and parts[0] in NAME_FOLDERS

    def _write(self, record: Record) -> None:
        self._records.mkdir(exist_ok=True)
        write_beside(self.record_file(record.sha256), json.dumps(asdict(record)).encode())


def _with(origins: tuple[str, ...], origin: str) -> tuple[str, ...]:
    return origins if origin in origins else (*origins, origin)
