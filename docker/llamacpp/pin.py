"""What `patches/` says: the upstream pin with its content digest, and the series of patches."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATCHES_DIR = ROOT / "patches"
NO_PATCHES = "none"


class PinError(Exception):
    """Something that was pinned is missing, malformed or not what was pinned. The message is for people."""


@dataclass(frozen=True)
class Pin:
    """One upstream version, by git tag and by sdist; both must hold the same tree."""

    tag: str
    build_number: int
    commit: str
    git_url: str
    sdist_name: str
    sdist_version: str
    sdist_sha256: str
    tree_files: int
    tree_sha256: str
    parts: dict[str, str]

    @property
    def revision(self) -> str:
        """The short commit where it is known, else the tag."""
        return self.commit[:9] or self.tag


@dataclass(frozen=True)
class Patch:
    name: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class Series:
    """Patches in the order they are applied; `digest` covers their names and their bytes."""

    name: str
    patches: tuple[Patch, ...]
    digest: str

    def stamp(self, pin: Pin) -> str:
        """What `llama-server --version` shows as its commit."""
        return f"{pin.revision}-{f'p{self.digest[:8]}' if self.patches else 'unpatched'}"


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file; `what` names it in the PinError where it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PinError(f"cannot read the {what} {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise PinError(f"{path}: not valid TOML: {error}") from error


def load_pin(path: Path = PATCHES_DIR / "upstream.toml") -> Pin:
    """Read the pin. Raises PinError that names the file and the key that is missing or of the wrong type."""
    data = read_toml(path, "pin")

    def value(table: str, key: str, kind: type) -> Any:
        found = data.get(table, {}).get(key)
        if type(found) is not kind:
            raise PinError(f"{path}: [{table}] {key} is {found!r}, expected a value of type {kind.__name__}")
        return found

    return Pin(
        tag=value("git", "tag", str),
        build_number=value("git", "build_number", int),
        commit=value("git", "commit", str),
        git_url=value("git", "url", str),
        sdist_name=value("pypi", "name", str),
        sdist_version=value("pypi", "version", str),
        sdist_sha256=value("pypi", "sha256", str),
        tree_files=value("tree", "files", int),
        tree_sha256=value("tree", "sha256", str),
        parts=value("tree", "parts", dict),
    )


def load_series(name: str, patches_dir: Path = PATCHES_DIR) -> Series:
    """Read `patches/<name>`: one file name a line, `@NAME` takes another series in, `#` starts a comment.

    `none` is the empty series. Raises PinError that names the file and the line.
    """
    if name == NO_PATCHES:
        return Series(name, (), hashlib.sha256(b"").hexdigest())
    patches: list[Patch] = []
    for place, entry in _entries(name, patches_dir, ()):
        if entry in {patch.name for patch in patches}:
            raise PinError(f"{place}: {entry} is named twice")
        try:
            content = (patches_dir / entry).read_bytes()
        except OSError as error:
            raise PinError(f"{place}: cannot read patch {entry}: {error.strerror}") from error
        patches.append(Patch(entry, patches_dir / entry, hashlib.sha256(content).hexdigest()))
    digest = hashlib.sha256("".join(f"{p.sha256}  {p.name}\n" for p in patches).encode()).hexdigest()
    return Series(name, tuple(patches), digest)


def _entries(name: str, patches_dir: Path, within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Place and name of each patch of a series, those of the series it takes in too."""
    listing = patches_dir / name
    if name in within:
        raise PinError(f"the patch series {' takes in '.join((*within, name))}: a circle")
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PinError(
            f"cannot read the patch series {listing}: {error.strerror}; "
            f"--patches takes the name of a series file in {patches_dir}, or 'none'"
        ) from error
    for number, line in enumerate(lines, start=1):
        entry = line.split("#", 1)[0].strip()
        if entry.startswith("@"):
            yield from _entries(entry[1:], patches_dir, (*within, name))
        elif entry:
            yield f"{listing}:{number}", entry


def _files(tree: Path, part: str) -> Iterator[Path]:
    top = tree / part
    if not top.is_dir():
        if top.exists():
            yield top
        return
    for folder, subfolders, names in os.walk(top):
        for name in subfolders + names:
            entry = Path(folder, name)
            if entry.is_symlink() and (entry.is_dir() or not entry.resolve().is_relative_to(tree.resolve())):
                raise PinError(f"{entry.relative_to(tree)} is a symbolic link to {entry.readlink()}: not allowed")
        yield from (Path(folder, name) for name in names)


@dataclass(frozen=True)
class Content:
    """What a tree holds below some of its parts: how many files, the digest of all of them, that of each part."""

    files: int
    sha256: str
    parts: dict[str, str]


def content_of(tree: Path, parts: Iterable[str]) -> Content:
    """The content of `tree`. Raises PinError for a symbolic link that leaves it."""
    lines = {part: _part_lines(tree, part) for part in parts}
    every = [line for found in lines.values() for line in found]
    return Content(len(every), _lines_digest(every), {part: _lines_digest(found) for part, found in lines.items()})


def _part_lines(tree: Path, part: str) -> list[str]:
    """The `sha256sum` lines of every file under `part`, unsorted."""
    return [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(tree).as_posix()}\n"
        for path in _files(tree, part)
    ]


def _lines_digest(lines: list[str]) -> str:
    """sha256 over `sha256sum` lines in byte order of their paths."""
    ordered = sorted(lines, key=lambda line: line.split("  ", 1)[1].encode())
    return hashlib.sha256("".join(ordered).encode()).hexdigest()


def verify_tree(tree: Path, pin: Pin) -> None:
    """Hold `tree` to the pin's content digest. Raises PinError with counts and digests, wanted and found."""
    found = content_of(tree, pin.parts)
    if (found.sha256, found.files) == (pin.tree_sha256, pin.tree_files):
        return
    differing = [part for part, digest in found.parts.items() if digest != pin.parts[part]]
    raise PinError(
        f"the source tree is not the pinned {pin.tag}:\n"
        f"  expected {pin.tree_files} files with digest {pin.tree_sha256}\n"
        f"  found    {found.files} files with digest {found.sha256}\n"
        f"  differs in: {', '.join(differing) or 'nothing by part: [tree] files or sha256 is wrong in the pin'}"
    )
