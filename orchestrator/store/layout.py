"""Where the files of each source lie. Reads names on disk, never contents of models, and changes nothing."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

from orchestrator.gguf.model import shard_names
from orchestrator.schemas import HfSource, OllamaSource, PathSource, PypiSource, Source, UrlSource
from orchestrator.store.ollama import OllamaStore
from orchestrator.store.refs import Refs, under

_URL_KEY_DIGITS = 16
_LONGEST_NAME_BYTES = 200


@dataclass(frozen=True)
class Place:
    """Where the files of a source lie, there or not. `path` is what llama-server gets: the first shard."""

    path: Path
    files: tuple[Path, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names, without folders, of the files that are not there."""
        return tuple(file.name for file in self.files if not os.path.isfile(file))


@dataclass(frozen=True)
class Layout:
    """Answers for one folder of model files and one cache; the store is the cache's `models`."""

    models_dir: Path
    cache: Path

    @property
    def root(self) -> Path:
        """The store."""
        return self.cache / "models"

    @property
    def refs(self) -> Refs:
        """Commits on record."""
        return Refs(self.root)

    def place(self, source: Source) -> Place | None:
        """Where the files of `source` lie; None while that is not known.

        A revision has to be resolved to a commit first; a model has to be in the Ollama store, and readable:
        `OllamaStore.read_model` says why one is not.
        """
        match source:
            case PathSource():
                own = self.own_file(source.path)
                return _placed(own.parent / name for name in shard_names(own.name))
            case HfSource():
                commit = self.refs.commit(source.hf, source.revision)
                if commit is None:
                    return None
                folder = under(self.root / "hf", source.hf) / commit
                return _placed(under(folder, name) for name in shard_names(source.file))
            case PypiSource():
                # The digest in a pypi source is that of one file, so there are no shards.
                return _placed([under(under(self.root / "pypi", source.pypi), source.file)])
            case UrlSource():
                urls = shard_urls(source.url)
                key = hashlib.sha256(urls[0].encode(errors="replace")).hexdigest()[:_URL_KEY_DIGITS]
                return _placed(self.root / "url" / key / name_of(url) for url in urls)
            case OllamaSource():
                found = OllamaStore.find().locate(source.ollama, source.layer)
                return _placed([found]) if found else None

    def missing(self, source: Source) -> tuple[str, ...]:
        """Names of what is not there, without folders; of a source without a place, everything it names."""
        return self.look(source)[1]

    def look(self, source: Source) -> tuple[Place | None, tuple[str, ...]]:
        """`place` and `missing` of one moment: what has no place is missing."""
        place = self.place(source)
        if place is not None:
            return place, place.missing
        match source:
            case HfSource():
                return None, tuple(PurePosixPath(name).name for name in shard_names(source.file))
            case OllamaSource():
                return None, (source.ollama if source.layer == "model" else f"{source.ollama} ({source.layer})",)
            case _:
                raise AssertionError("sources of other kinds always have a place")

    def own_file(self, text: str) -> Path:
        """Where a `path` source leads: from the home folder for `~`, else from the folder of the model files."""
        path = Path(text)
        # A home folder that nobody has is a folder's name.
        with suppress(RuntimeError):
            path = path.expanduser()
        return path if path.is_absolute() else (self.models_dir / path).absolute()


def shard_urls(url: str) -> tuple[str, ...]:
    """Addresses of all shards, told from that of any; the address itself if it is none."""
    parts = urlsplit(url)
    return tuple(urlunsplit(parts._replace(path=path)) for path in shard_names(parts.path))


def name_of(url: str) -> str:
    """The file name in an address, fit for a folder of ours."""
    name = unquote(urlsplit(url).path.rpartition("/")[2]).replace("/", "_").replace("\0", "_")
    name = name.encode(errors="replace")[-_LONGEST_NAME_BYTES:].decode(errors="ignore").lstrip(".")
    return name or "file"


def _placed(paths: Iterable[Path]) -> Place:
    files = tuple(paths)
    return Place(files[0], files)
