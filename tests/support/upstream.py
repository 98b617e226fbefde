"""A tiny upstream in place of llama.cpp: a real CMake project in a real git repository, with a pin that fits it."""

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from llamacpp.pin import Pin, Series, content_of, load_series

TAG = "b7"
PARTS = ("CMakeLists.txt", "LICENSE", "src", "vendor")
FILES = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.14)
project(tiny C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
configure_file(src/stamp.h.in stamp.h)
include_directories(${CMAKE_BINARY_DIR})
add_library(ggml-cpu SHARED src/cpu.cpp)
add_executable(llama-server src/server.cpp src/routes.cpp)
target_link_libraries(llama-server PRIVATE ggml-cpu)
""",
    "src/stamp.h.in": '#define STAMP "build @LLAMA_BUILD_NUMBER@, commit @LLAMA_BUILD_COMMIT@"\n',
    "src/cpu.cpp": "int threads() { return 1; }\n",
    "src/routes.cpp": "".join(f"int route_{n}() {{ return {n}; }}\n" for n in range(40)),
    "src/server.cpp": """\
#include "stamp.h"
#include <cstdio>
int threads();
int route_3();
int main() { std::printf("version: (%s) in %s, %d\\n", STAMP, __FILE__, threads() + route_3()); }
""",
    "docs/build.md": "How to build.\n",
    "LICENSE": "Everything is allowed.\n",
    "vendor/http/LICENSE.md": "Everything but bugs.\n",
}


@dataclass(frozen=True)
class Upstream:
    """`tree` as the tag has it, `repository` with the tag, and the pin of both."""

    repository: Path
    tree: Path
    pin: Pin

    @property
    def url(self) -> str:
        return self.repository.as_uri()


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_upstream(folder: Path) -> Upstream:
    """Make the repository, tag it, and pin the digest of its tree; the commit stays unknown, as with an sdist."""
    tree = folder / "tree"
    for name, content in FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    held = content_of(tree, PARTS)
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet")
    git(repository, "--work-tree", str(tree), "add", "--all")
    git(repository, "commit", "--quiet", "--message", "first")
    git(repository, "tag", TAG)
    pin = Pin(
        tag=TAG,
        build_number=7,
        commit="",
        git_url=repository.as_uri(),
        sdist_name="tiny-upstream",
        sdist_version="7.0.0",
        sdist_sha256="0" * 64,
        tree_files=held.files,
        tree_sha256=held.sha256,
        parts=held.parts,
    )
    return Upstream(repository, tree, pin)


def write_pin(pin: Pin, path: Path) -> None:
    """Write `pin` in the form of patches/upstream.toml."""
    tables: dict[str, dict[str, str | int]] = {
        "git": {"url": pin.git_url, "tag": pin.tag, "build_number": pin.build_number, "commit": pin.commit},
        "pypi": {"name": pin.sdist_name, "version": pin.sdist_version, "sha256": pin.sdist_sha256},
        "tree": {"files": pin.tree_files, "sha256": pin.tree_sha256},
        "tree.parts": dict(pin.parts),
    }
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n")


def with_commit(upstream: Upstream, commit: str) -> Pin:
    return replace(upstream.pin, commit=commit)


def make_series(upstream: Upstream, folder: Path, **edits: tuple[str, str]) -> Series:
    """One patch an edit, named `<keyword>.patch`: a file's old and new text, as `"src/cpu.cpp: old"` and `new`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, (where, new) in edits.items():
        file, old = where.split(": ", 1)
        path = upstream.tree / file
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new))
        work = ("--work-tree", str(upstream.tree))
        (folder / f"{name}.patch").write_text(git(upstream.repository, *work, "diff", "--", file) + "\n")
        path.write_text(before)
        names.append(f"{name}.patch\n")
    (folder / "series").write_text("".join(names))
    return load_series("series", folder)
