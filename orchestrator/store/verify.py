"""Reads stored files again and compares them with their digests: as many at once as there are cores."""

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.gguf.digest import hash_file
from orchestrator.schemas import StoredFile, UnreadableFile, VerifyView, WrongFile
from orchestrator.store.blobs import Blobs
from orchestrator.store.disk import disk_error
from orchestrator.store.progress import Progress

_POLL_SECONDS = 0.2
# An Ollama store names its blobs by digest too; they are compared and left where they are.
_OLLAMA_BLOB = re.compile(r"sha256-([0-9a-f]{64})")


@dataclass(frozen=True)
class _Item:
    """A content to read. `names` are fit for clients: without folders outside of the store."""

    path: Path
    sha256: str
    names: tuple[str, ...]
    size_bytes: int
    is_ours: bool


@dataclass
class _Findings:
    ok: list[StoredFile] = field(default_factory=list)
    wrong: list[WrongFile] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)
    unrecorded: list[StoredFile] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class _Stopped(Exception):
    """Nobody waits for the digest any more."""


class _Meter:
    """Bytes read by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self.total_bytes = 0

    def add(self, count: int) -> None:
        if self._stopped:
            raise _Stopped
        with self._lock:
            self.total_bytes += count

    def stop(self) -> None:
        self._stopped = True


def verify(blobs: Blobs, report: Progress, names: Iterable[Path] | None = None) -> VerifyView:
    """Read the files of these names, or the whole store, and say which are right.

    A wrong blob goes into quarantine and its names with it, so that they count as missing. Files that have no digest
    to be compared with, those of `path` sources and grafts among them, are listed and not read.
    """
    begun, findings, meter = time.monotonic(), _Findings(), _Meter()
    items = _whole_store(blobs, findings) if names is None else _named(blobs, names, findings)
    # The largest first: the threads then end at about the same time.
    items.sort(key=lambda item: item.size_bytes, reverse=True)
    report.phase("hashing", sum(item.size_bytes for item in items))
    try:
        for item, outcome in _hash(items, meter, report):
            _judge(blobs, item, outcome, findings, report)
    except OSError as e:
        raise disk_error(e, "what was found") from e
    return VerifyView(
        ok=tuple(sorted(findings.ok, key=lambda file: file.names)),
        wrong=tuple(sorted(findings.wrong, key=lambda file: file.names)),
        unreadable=tuple(sorted(findings.unreadable, key=lambda file: file.names)),
        unrecorded=tuple(findings.unrecorded),
        missing=tuple(sorted(findings.missing)),
        read_bytes=meter.total_bytes,
        seconds=time.monotonic() - begun,
    )


def _whole_store(blobs: Blobs, findings: _Findings) -> list[_Item]:
    items = []
    for file in blobs.files():
        if file.sha256 is None:
            findings.unrecorded.append(file)
        else:
            items.append(_Item(blobs.blob(file.sha256), file.sha256, file.names, file.size_bytes, True))
    return items


def _named(blobs: Blobs, names: Iterable[Path], findings: _Findings) -> list[_Item]:
    """One item a content, however many of the names lead to it."""
    found: dict[Path, _Item] = {}
    for name in dict.fromkeys(names):
        shown = str(name.relative_to(blobs.root)) if name.is_relative_to(blobs.root) else name.name
        real = Path(os.path.realpath(name))
        try:
            size = real.stat().st_size
        except OSError:
            findings.missing.append(shown)
            continue
        ours, ollamas = blobs.target(name), _OLLAMA_BLOB.fullmatch(real.name)
        sha256 = ours or (ollamas[1] if ollamas else None)
        if sha256 is None:
            findings.unrecorded.append(StoredFile(sha256=None, size_bytes=size, names=(shown,)))
            continue
        others = found[real].names if real in found else ()
        found[real] = _Item(real, sha256, (*others, shown), size, ours is not None)
    return list(found.values())


def _hash(
    items: list[_Item], meter: _Meter, report: Progress
) -> Iterator[tuple[_Item, tuple[str, os.stat_result] | OSError]]:
    """Each item, in the order they are done, with digest and facts of its file, or with what the system said."""
    pending: dict[Future[tuple[str, os.stat_result]], _Item] = {}
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)), thread_name_prefix="verify") as pool:
        try:
            pending = {pool.submit(_read, item.path, meter): item for item in items}
            while pending:
                done, _ = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
                report.advance(meter.total_bytes)
                for future in done:
                    item, error = pending.pop(future), future.exception()
                    if error is not None and not isinstance(error, OSError):
                        raise error
                    yield item, error or future.result()
        finally:
            meter.stop()
            pool.shutdown(cancel_futures=True)


def _read(path: Path, meter: _Meter) -> tuple[str, os.stat_result]:
    facts = path.stat()
    return hash_file(path, meter.add), facts


def _judge(
    blobs: Blobs,
    item: _Item,
    outcome: tuple[str, os.stat_result] | OSError,
    findings: _Findings,
    report: Progress,
) -> None:
    shown = ", ".join(item.names) or item.sha256
    if isinstance(outcome, FileNotFoundError):
        findings.missing.extend(item.names)
        return
    if isinstance(outcome, OSError):
        report.line(f"unreadable: {shown}: {outcome.strerror}")
        findings.unreadable.append(UnreadableFile(names=item.names, reason=outcome.strerror or str(outcome)))
        return
    actual, facts = outcome
    if actual == item.sha256:
        if item.is_ours:
            blobs.confirm(item.sha256, facts)
        findings.ok.append(_right(blobs, item, facts))
        return
    condemned = blobs.condemn(item.sha256, facts, actual) if item.is_ours else None
    if condemned is None and item.is_ours:
        # Removed while it was read, or replaced by bytes that were verified.
        if blobs.has(item.sha256):
            findings.ok.append(_right(blobs, item, facts))
        else:
            findings.missing.extend(item.names)
        return
    report.line(f"wrong: {shown} has sha256 {actual}, expected {item.sha256}")
    place, names = condemned or (None, item.names)
    findings.wrong.append(
        WrongFile(
            expected_sha256=item.sha256,
            actual_sha256=actual,
            size_bytes=facts.st_size,
            names=names,
            quarantined=place,
        )
    )


def _right(blobs: Blobs, item: _Item, facts: os.stat_result) -> StoredFile:
    record = blobs.record(item.sha256) if item.is_ours else None
    origins, verified = (record.origins, record.verified) if record else ((), time.time())
    return StoredFile(
        sha256=item.sha256, size_bytes=facts.st_size, names=item.names, origins=origins, verified=verified
    )
