"""Which commit a branch or tag of a Hugging Face repository stands for: looked up once, then kept."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.output import BESIDE
from orchestrator.store.disk import disk_error, locked, write_beside

DEFAULT_REVISION = "main"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_COMMIT_BYTES = 41


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit itself: 40 hexadecimal digits."""
    return _COMMIT.fullmatch(revision) is not None


def under(root: Path, relative: str) -> Path:
    """A path inside `root`; SlipstreamError invalid_request for one that would leave it."""
    parts = PurePosixPath(relative).parts
    if not parts or parts[0] == "/" or ".." in parts or any("\0" in part or "\\" in part for part in parts):
        raise SlipstreamError(Code.INVALID_REQUEST, f"{relative!r} is no relative path without `..`")
    return root.joinpath(*parts)


class Refs:
    """`refs/hf/<owner>/<name>/<revision>` of a store: text files with a commit each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "refs" / "hf"

    def commit(self, repository: str, revision: str | None = None) -> str | None:
        """The commit of a revision: its own, or the one on record; None while it has not been looked up."""
        revision = revision or DEFAULT_REVISION
        return revision if is_commit(revision) else _read(self._file(repository, revision))

    def record(self, repository: str, revision: str | None, commit: str, *, replace: bool = False) -> str:
        """Keep what a revision was resolved to; the commit that counts.

        That is another's if it came first, unless `replace` is set.
        """
        revision = revision or DEFAULT_REVISION
        if not is_commit(commit):
            raise SlipstreamError(Code.SOURCE_FAILED, f"{commit!r} is no commit, expected 40 hexadecimal digits")
        if is_commit(revision):
            return revision
        path = self._file(repository, revision)
        try:
            with locked(self._root):
                if not replace and (recorded := _read(path)) is not None:
                    return recorded
                self._make_room(path)
                write_beside(path, f"{commit}\n".encode())
            return commit
        except OSError as e:
            raise disk_error(e, f"the commit of {repository}@{revision}") from e

    def files(self) -> Iterator[tuple[Path, str, str | None]]:
        """Every record: its file, its repository, its commit (None where it is damaged)."""
        for path in sorted(self._folder.rglob("*")):
            parts = path.relative_to(self._folder).parts
            if len(parts) > 2 and path.is_file() and not path.name.startswith(BESIDE):
                yield path, f"{parts[0]}/{parts[1]}", _read(path)

    def _file(self, repository: str, revision: str) -> Path:
        return under(under(self._folder, repository), revision)

    def _make_room(self, path: Path) -> None:
        """In git no branch is a folder of branches at the same time, so what is in the way is out of date."""
        for folder in reversed(path.parents):
            if folder.is_relative_to(self._folder) and folder.is_file():
                folder.unlink()
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            text = file.read(_COMMIT_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if is_commit(text) else None
