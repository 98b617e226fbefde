"""Brings one file whole: resumable, proven by its sha256, never reported as there when it is not."""

import os
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from orchestrator.gguf.output import sync_folder
from orchestrator.store.fetching.digest import Follower
from orchestrator.store.fetching.partial import Partial, hold
from orchestrator.store.fetching.transfer import Transfer
from orchestrator.store.fetching.xet import XetFailed, XetOffer, xet_offer
from orchestrator.store.http.answers import StartOver, in_place_of_the_file
from orchestrator.store.http.limits import DEFAULT, Limits
from orchestrator.store.http.retry import Patience
from orchestrator.store.progress import Progress
from orchestrator.store.remote import RemoteFile

__all__ = ["Fetched", "Progress", "fetch", "fetch_held", "hold"]

_SNIFF_BYTES = 512


@dataclass(frozen=True)
class Fetched:
    """A file that is there whole and on disk, with the digest of its bytes as they were read back."""

    path: Path
    sha256: str
    size_bytes: int


def fetch(remote: RemoteFile, partial: Path, report: Progress, limits: Limits = DEFAULT) -> Fetched:
    """Bring `remote` into the folder `partial`, continuing what an earlier fetch left there.

    Waits for another process that works there. Blocks; SlipstreamError says why it could not be brought: what came so
    far is kept, except for wrong bytes, which go to the folder `quarantine` beside the folder that holds `partial`.
    """
    with hold(partial, report, remote.name):
        return fetch_held(remote, partial, report, limits)


def fetch_held(remote: RemoteFile, partial: Path, report: Progress, limits: Limits = DEFAULT) -> Fetched:
    """`fetch` for a caller that has the lock (`hold`), and may look first whether the file has come meanwhile."""
    work = Partial(partial, remote)
    try:
        return _fetch(work, report, limits)
    finally:
        work.close()


def _fetch(work: Partial, report: Progress, limits: Limits) -> Fetched:
    remote = work.remote
    patience = Patience(f"{remote.name} from {remote.host}", limits, report.line)
    work.check_space()
    offer = None if work.is_whole else xet_offer(remote, limits)
    while True:
        is_resumed = bool(work.done)
        try:
            sha256 = _attempt(work, patience, report, limits, offer)
        except XetFailed as e:
            report.line(f"{remote.name}: {e}; going on by HTTP")
            offer = None
            continue
        except StartOver as e:
            work.wipe()
            patience.until(Event()).fail(str(e))
            continue
        if remote.sha256 in (None, sha256):
            break
        # Bytes of an earlier run may have been lost with the power; those of this one are what the server sent.
        if not is_resumed:
            raise work.quarantine(sha256)
        work.wipe()
    size_bytes = os.fstat(work.fd).st_size
    if remote.sha256 is None:
        _refuse_other_files(work)
    try:
        os.fsync(work.fd)
        sync_folder(work.folder)
    except OSError as e:
        raise work.unwritable(e) from e
    return Fetched(work.data, sha256, size_bytes)


def _attempt(work: Partial, patience: Patience, report: Progress, limits: Limits, offer: XetOffer | None) -> str:
    """One pass over the file; the digest of what lies there then."""
    follower = Follower(work.fd, work.remote.name)
    try:
        Transfer(work, follower, limits, patience).run(report, offer)
        total_bytes = work.total_bytes or 0
        os.ftruncate(work.fd, total_bytes)
        report.phase("hashing", total_bytes, work.remote.name, follower.done_bytes)
        return follower.finish(total_bytes, report.advance)
    finally:
        follower.stop()


def _refuse_other_files(work: Partial) -> None:
    """Without a digest to compare, what calls itself the file and is none is still told by how it begins."""
    start = os.pread(work.fd, _SNIFF_BYTES, 0).lstrip().lower()
    what = None
    if start.startswith((b"<!doctype html", b"<html")) and not work.remote.name.lower().endswith((".html", ".htm")):
        what = "a web page"
    elif start.startswith(b"version https://git-lfs.github.com/spec/"):
        what = "a Git LFS pointer"
    if what is not None:
        work.wipe()
        raise in_place_of_the_file(what, work.remote)
