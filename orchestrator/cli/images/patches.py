"""The digest of a patch series: what labels, tags and `llama-server --version` name it by."""

import hashlib
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError


def series_name(patches: Path, accelerator: str) -> str:
    """The file that lists the patches of an accelerator: its own, else the common one."""
    own = f"series.{accelerator}"
    return own if accelerator and (patches / own).is_file() else "series"


def series_digest(patches: Path, name: str) -> str:
    """sha256 over the `sha256sum` lines of the patches in order, as docker/llamacpp/pin.py has it.

    Raises SlipstreamError that names what cannot be read.
    """
    lines = []
    for entry in _entries(patches, name, ()):
        lines.append(f"{hashlib.sha256(_read(patches / entry)).hexdigest()}  {entry}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _entries(patches: Path, name: str, within: tuple[str, ...]) -> list[str]:
    if name in within:
        raise SlipstreamError(Code.INVALID_REQUEST, f"{patches / name} takes itself in")
    found: list[str] = []
    for line in _read(patches / name).decode(errors="replace").splitlines():
        entry = line.partition("#")[0].strip()
        if entry.startswith("@"):
            found += _entries(patches, entry[1:], (*within, name))
        elif entry:
            found.append(entry)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SlipstreamError(
            Code.INVALID_REQUEST,
            f"cannot read {path}: {error.strerror}",
            hint="--patches takes the folder patches/ of a checkout",
        ) from error
