"""Build llama-server from the pinned source and a patch series, once for each set of pin, patches and options."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llamacpp import toolchain
from llamacpp.console import say
from llamacpp.pin import Pin, PinError, Series, load_pin, load_series
from llamacpp.source import Origin, add_source_options, cache_root, chosen_origin, fetch, staged

KEY_SCHEMA = 1
TARGET = "llama-server"
NAMED_FILES = 8
# No option lets the server or its build reach a network: no embedded UI to download, no TLS client.
COMMON_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    # Unity files name their members by absolute path otherwise, and no two builds would share them in ccache.
    "CMAKE_UNITY_BUILD_RELOCATABLE": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
PROFILES = {
    "native": {"GGML_NATIVE": "ON"},
    "portable": {"GGML_NATIVE": "OFF", "GGML_BACKEND_DL": "ON", "GGML_CPU_ALL_VARIANTS": "ON"},
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a build gives; two recipes with one key give the same server."""

    pin: Pin
    series: Series
    profile: str

    @property
    def stamp(self) -> str:
        return self.series.stamp(self.pin)

    @property
    def options(self) -> dict[str, str]:
        stamps = {"LLAMA_BUILD_NUMBER": str(self.pin.build_number), "LLAMA_BUILD_COMMIT": self.stamp}
        return COMMON_OPTIONS | PROFILES[self.profile] | stamps

    def describe(self) -> dict[str, object]:
        """The content of build.json without the key: pin, patches, options, compiler, processor if it matters."""
        return {
            "schema": KEY_SCHEMA,
            "tag": self.pin.tag,
            "commit": self.pin.commit,
            "stamp": self.stamp,
            "tree_sha256": self.pin.tree_sha256,
            "patches_sha256": self.series.digest,
            "patches": [patch.name for patch in self.series.patches],
            "profile": self.profile,
            "options": self.options,
            "compiler": toolchain.compiler_identity(),
            "processor": toolchain.processor_identity() if self.profile == "native" else "any",
        }


def recipe_key(description: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class Built:
    """A finished build. `compiled` names the files the compiler ran for; `reused` counts those from ccache."""

    folder: Path
    compiled: list[str] = field(default_factory=list)
    reused: int = 0
    fresh: bool = False

    @property
    def server(self) -> Path:
        return self.folder / TARGET


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds the same server: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_complete(folder: Path) -> bool:
    return (folder / "build.json").is_file() and os.access(folder / TARGET, os.X_OK)


def build(
    recipe: Recipe,
    cache: Path,
    *,
    origin: Origin,
    jobs: int | None = None,
    keep: bool = False,
) -> Built:
    """The server of `recipe`, built if it is not in `cache` yet. Raises PinError; a failed build leaves its log."""
    description = recipe.describe()
    key = recipe_key(description)
    built = Built(cache / TARGET / key)
    if _is_complete(built.folder):
        # The orchestrator takes the server that was asked for last.
        with contextlib.suppress(OSError):
            os.utime(built.folder / "build.json")
        return built
    toolchain.require("git", "cmake", "ninja")
    work = cache / "work" / key
    with _locked(work.with_suffix(".lock")):
        if _is_complete(built.folder):
            return built
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(built.folder, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            fetch(recipe.pin, recipe.series, work / "llama.cpp", origin=origin, cache=cache)
            _compile(recipe, work, cache, built, jobs or toolchain.default_jobs())
            _install(work / "build/bin", built.folder, recipe, {"key": key} | description)
        except BaseException:
            if not keep:
                _leave_log_only(work)
            raise
        if not keep:
            shutil.rmtree(work)
    built.fresh = True
    return built


def _leave_log_only(work: Path) -> None:
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
    if not any(work.iterdir()):
        work.rmdir()


def _compile(recipe: Recipe, work: Path, cache: Path, built: Built, jobs: int) -> None:
    log, statistics = work / "build.log", work / "ccache.log"
    environment = toolchain.build_environment(work, cache)
    cc, cxx = toolchain.compilers()
    options = recipe.options | {"CMAKE_C_COMPILER": ";".join(cc), "CMAKE_CXX_COMPILER": ";".join(cxx)}
    if shutil.which("ccache", path=toolchain.search_path()):
        options |= {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX")}
    else:
        say("ccache is not installed (make venv brings it): every file is compiled")
        options |= {f"CMAKE_{language}_FLAGS": f"-ffile-prefix-map={work}=." for language in ("C", "CXX")}
    say(f"building {TARGET} {recipe.stamp} ({recipe.profile}), {jobs} jobs; log: {log}")
    configure = ["cmake", "-S", str(work / "llama.cpp"), "-B", str(work / "build"), "-G", "Ninja"]
    toolchain.run_logged([*configure, *(f"-D{name}={value}" for name, value in options.items())], log, environment)
    ninja = ["ninja", "-C", str(work / "build"), "-j", str(jobs), TARGET]
    toolchain.run_logged(ninja, log, environment | {"CCACHE_STATSLOG": str(statistics)})
    if statistics.exists():
        built.compiled, built.reused = toolchain.read_statistics(statistics.read_text(encoding="utf-8"))


def _install(binaries: Path, folder: Path, recipe: Recipe, description: dict[str, object]) -> None:
    with staged(folder) as staging:
        for entry in sorted(binaries.iterdir()):
            if entry.name == TARGET or ".so" in entry.suffixes:
                shutil.copy2(entry, staging / entry.name, follow_symlinks=False)
        check_version(staging / TARGET, recipe)
        (staging / "build.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def check_version(server: Path, recipe: Recipe) -> None:
    """Run the server where it will live: its libraries must load from its own folder, its stamp must be ours."""
    if not any(server.parent.glob("libggml-cpu*.so")):
        raise PinError(f"the build gave no libggml-cpu*.so beside {server}")
    done = subprocess.run([server, "--version"], capture_output=True, text=True, env={}, timeout=60)
    output = done.stdout + done.stderr
    expected = f"build {recipe.pin.build_number}, commit {recipe.stamp}"
    if done.returncode or expected not in output:
        raise PinError(
            f"{server} --version gave exit status {done.returncode} and {output.strip()!r}, expected 0 and '{expected}'"
        )


def export(built: Built, output: Path) -> None:
    """Copy a finished build to `output`, in place of an earlier one if there is one."""
    if output.exists() and not (output / "build.json").exists() and (not output.is_dir() or any(output.iterdir())):
        raise PinError(f"{output} is there already and holds no build of {TARGET}; name a new folder or remove it")
    target = output.resolve()
    with staged(target) as staging:
        shutil.copytree(built.folder, staging, symlinks=True, dirs_exist_ok=True)
        if target.exists():
            shutil.rmtree(target)


def main() -> None:
    parser = argparse.ArgumentParser(prog="build-llama-server", description=__doc__)
    add_source_options(parser)
    parser.add_argument(
        "--profile",
        choices=list(PROFILES),
        default="native",
        help="native: for this processor; portable: all variants, chosen at run time (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="copy the server and its libraries here too")
    parser.add_argument("--print-path", action="store_true", help="print the server's path, and nothing else")
    parser.add_argument("--jobs", type=int, metavar="N", help="compile N files at a time (default: by CPUs, memory)")
    parser.add_argument("--keep", action="store_true", help="keep the source tree and the build folder")
    options = parser.parse_args()
    recipe = Recipe(load_pin(), load_series(options.patches), options.profile)
    origin = chosen_origin(options)
    built = build(recipe, cache_root(), origin=origin, jobs=options.jobs, keep=options.keep)
    if options.output:
        export(built, options.output)
    if built.fresh:
        names = f" ({', '.join(built.compiled)})" if 0 < len(built.compiled) <= NAMED_FILES else ""
        say(f"compiled {len(built.compiled)} files{names}, took {built.reused} from ccache")
    if options.print_path:
        print(built.server)
    else:
        say(f"{TARGET} {recipe.stamp} ({recipe.profile}): {built.server}")
