"""Build llama-server from the pinned source and a patch series, once for each set of pin, patches and options."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llamacpp import gpu, toolchain
from llamacpp.console import say
from llamacpp.pin import PinError
from llamacpp.recipe import PROFILES, Recipe, chosen_recipe, recipe_key
from llamacpp.source import Origin, add_source_options, cache_root, chosen_origin, fetch, staged
from llamacpp.variants import accelerators

TARGET = "llama-server"
NAMED_FILES = 8


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
    # What an older script has built has no licenses.
    return (folder / "licenses").is_dir() and (folder / "build.json").is_file() and os.access(folder / TARGET, os.X_OK)


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
            _configure(recipe, work, cache)
            built.compiled, built.reused = _compile(work, cache, jobs or toolchain.default_jobs(), [TARGET])
            _install(work, built.folder, recipe, {"key": key} | description)
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


def _configure(recipe: Recipe, work: Path, cache: Path) -> None:
    cc, cxx = toolchain.compilers()
    options = recipe.options | {"CMAKE_C_COMPILER": ";".join(cc), "CMAKE_CXX_COMPILER": ";".join(cxx)}
    accelerator = recipe.variant.accelerator
    options |= gpu.cmake_options(accelerator)
    if shutil.which("ccache", path=toolchain.search_path()):
        options |= {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in gpu.languages(accelerator)}
    else:
        say("ccache is not installed (make venv brings it): every file is compiled")
        options |= {f"CMAKE_{language}_FLAGS": f"-ffile-prefix-map={work}=." for language in ("C", "CXX")}
    say(f"building {TARGET} {recipe.stamp} ({recipe.title}); log: {_log(work)}")
    command = ["cmake", "-S", str(work / "llama.cpp"), "-B", str(work / "build"), "-G", "Ninja"]
    command += [f"-D{name}={value}" for name, value in options.items()]
    toolchain.run_logged(command, _log(work), toolchain.build_environment(work, cache))


def _log(work: Path) -> Path:
    return work / "build.log"


def _compile(work: Path, cache: Path, jobs: int, targets: list[str]) -> tuple[list[str], int]:
    """Run ninja for `targets`: the files that were compiled, and how many came from ccache."""
    statistics = work / "ccache.log"
    environment = toolchain.build_environment(work, cache) | {"CCACHE_STATSLOG": str(statistics)}
    toolchain.run_logged(["ninja", "-C", str(work / "build"), "-j", str(jobs), *targets], _log(work), environment)
    if not statistics.exists():
        return [], 0
    return toolchain.read_statistics(statistics.read_text(encoding="utf-8"))


def compile_only(
    recipe: Recipe,
    cache: Path,
    files: list[str],
    *,
    origin: Origin,
    jobs: int | None = None,
    keep: bool = False,
) -> None:
    """Configure as for a whole build, compile `files` alone (paths below the source), check the GPU's code in each."""
    work = cache / "work" / f"{recipe_key(recipe.describe())}-only"
    with _locked(work.with_suffix(".lock")):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        fetch(recipe.pin, recipe.series, work / "llama.cpp", origin=origin, cache=cache)
        _configure(recipe, work, cache)
        # ninja's word for what is made of a source file.
        _compile(work, cache, jobs or toolchain.default_jobs(), [f"{work / 'llama.cpp' / name}^" for name in files])
        for made in sorted((work / "build").rglob("*.cu.o")):
            gpu.check_code(made, recipe.variant)
            say(f"{made.name}: {made.stat().st_size} bytes, code for {', '.join(recipe.variant.architectures)} alone")
        if not keep:
            shutil.rmtree(work)


def _install(work: Path, folder: Path, recipe: Recipe, description: dict[str, object]) -> None:
    with staged(folder) as staging:
        for entry in sorted((work / "build/bin").iterdir()):
            if entry.name == TARGET or ".so" in entry.suffixes:
                shutil.copy2(entry, staging / entry.name, follow_symlinks=False)
        check_version(staging / TARGET, recipe)
        gpu.check(staging, recipe.variant)
        keep_licenses(work / "llama.cpp", staging / "licenses")
        (staging / "build.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def keep_licenses(tree: Path, folder: Path) -> None:
    """Copy llama.cpp's license and those of the libraries it brings: whoever passes a server on owes them."""
    folder.mkdir()
    for file in (tree / "LICENSE", *tree.glob("licenses/*"), *tree.glob("vendor/**/LICENSE*")):
        shutil.copyfile(file, folder / "-".join((file.stem, *file.parent.relative_to(tree).parts[1:])))


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
    parser.add_argument(
        "--variant",
        default="cpu",
        help=f"{', '.join(accelerators())}, or for some GPUs such as rocm-gfx1030, cuda-86-real (default: %(default)s)",
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of CMake's; as often as needed"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="copy the server and its libraries here too")
    parser.add_argument("--print-path", action="store_true", help="print the server's path, and nothing else")
    parser.add_argument("--jobs", type=int, metavar="N", help="compile N files at a time (default: by CPUs, memory)")
    parser.add_argument("--keep", action="store_true", help="keep the source tree and the build folder")
    parser.add_argument(
        "--only", action="append", metavar="FILE", help="compile this source file alone and check its code; no server"
    )
    options = parser.parse_args()
    recipe, origin = chosen_recipe(options), chosen_origin(options)
    if options.only:
        compile_only(recipe, cache_root(), options.only, origin=origin, jobs=options.jobs, keep=options.keep)
        return
    built = build(recipe, cache_root(), origin=origin, jobs=options.jobs, keep=options.keep)
    if options.output:
        export(built, options.output)
    if built.fresh:
        names = f" ({', '.join(built.compiled)})" if 0 < len(built.compiled) <= NAMED_FILES else ""
        say(f"compiled {len(built.compiled)} files{names}, took {built.reused} from ccache")
    if options.print_path:
        print(built.server)
    else:
        say(f"{TARGET} {recipe.stamp} ({recipe.title}): {built.server}")
