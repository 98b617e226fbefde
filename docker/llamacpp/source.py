"""Bring the pinned llama.cpp source from PyPI or git, check its content, apply a patch series."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from llamacpp.console import say
from llamacpp.pin import ROOT, Patch, Pin, PinError, Series, load_pin, load_series, verify_tree

GIT_TIMEOUT_SECONDS = 900
HAS_SDIST_BACKEND = (
    "from importlib.metadata import version; version('pip'); version('setuptools-scm'); "
    "raise SystemExit(int(version('setuptools').split('.')[0]) < 77)"
)


def cache_root() -> Path:
    """`SLIPSTREAM_CACHE`, else `slipstream` in the user's cache folder; symbolic links resolved."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SLIPSTREAM_CACHE") or Path(base) / "slipstream").expanduser().resolve()


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its name only if the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        staging.chmod(0o755)
        yield staging
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@dataclass(frozen=True)
class Origin:
    """Where the source comes from: 'pypi' (by the pip of `python`) or 'git' (from `git_url`, else the pin's)."""

    kind: str = "pypi"
    git_url: str | None = None
    python: str | None = None


def fetch(pin: Pin, series: Series, into: Path, *, origin: Origin, cache: Path) -> None:
    """Put the checked and patched tree at `into`, which must not exist or be empty."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise PinError(f"{into} is there already and is not an empty folder; name a new one or remove it")
    with staged(into) as tree:
        if origin.kind == "git":
            checkout(pin, origin.git_url or pin.git_url, tree, cache / "downloads")
        else:
            unpack_sdist(bring_sdist(pin, cache / "downloads", origin.python), tree)
        verify_tree(tree, pin)
        apply_series(tree, series)


def sdist_python(python: str | None = None) -> str:
    """A Python that can read the sdist's metadata: pip, setuptools >= 77 and setuptools-scm are installed."""
    named = python or os.environ.get("SLIPSTREAM_PYTHON")
    candidates = [named] if named else [sys.executable, str(ROOT / ".venv/bin/python")]
    for candidate in candidates:
        with contextlib.suppress(OSError):
            if subprocess.run([candidate, "-c", HAS_SDIST_BACKEND], capture_output=True).returncode == 0:
                return candidate
    raise PinError(
        f"no Python with pip, setuptools>=77 and setuptools-scm among: {', '.join(candidates)}\n"
        "  bring one with: make venv   (or: pip install --require-hashes -r requirements/build.txt)"
    )


def bring_sdist(pin: Pin, downloads: Path, python: str | None = None) -> Path:
    """The sdist in `downloads`, brought by pip if it is not there. Its sha256 is checked on every use."""
    archive = downloads / f"{pin.sdist_name.replace('-', '_')}-{pin.sdist_version}.tar.gz"
    if archive.exists():
        found = file_sha256(archive)
        if found == pin.sdist_sha256:
            return archive
        say(f"{archive} has sha256 {found}, expected {pin.sdist_sha256}: bringing it again")
        archive.unlink()
    interpreter = sdist_python(python)
    say(f"bringing {pin.sdist_name} {pin.sdist_version} with pip")
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sdist.", dir=downloads) as folder:
        requirement = Path(folder, "requirement.txt")
        # With a hash pip checks the file before it runs the sdist's own build backend for the metadata.
        requirement.write_text(f"{pin.sdist_name}=={pin.sdist_version} --hash=sha256:{pin.sdist_sha256}\n")
        command = [interpreter, "-m", "pip", "download", "-qq", "--no-input", "--no-deps", "--no-build-isolation"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--no-binary", pin.sdist_name]
        command += ["--require-hashes", "--requirement", str(requirement), "--dest", folder]
        status = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode
        if status:
            raise PinError(
                f"pip could not bring {pin.sdist_name}=={pin.sdist_version} (exit status {status}, its words are "
                "above); where a git host can be reached: --from git"
            )
        brought = Path(folder, archive.name)
        if not brought.exists():
            raise PinError(f"pip brought {sorted(os.listdir(folder))}, expected {archive.name}")
        brought.rename(archive)
    return archive


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack_sdist(archive: Path, tree: Path) -> None:
    """Unpack the `llama.cpp/` subtree alone (MIT; the wrapper around it is AGPL): plain files and folders only."""
    prefix = PurePosixPath(archive.name.removesuffix(".tar.gz"), "llama.cpp")
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if not path.is_relative_to(prefix) or member.isdir():
                continue
            if not member.isreg() or ".." in path.parts:
                raise PinError(f"{archive.name}: member {member.name} is not a plain file inside the archive")
            target = tree / path.relative_to(prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with content, target.open("xb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
            os.utime(target, (member.mtime, member.mtime))


def git_environment(tree: Path) -> dict[str, str]:
    """git that sees no repository around `tree`: inside one, `git apply` would skip every file without a word."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return environment | {
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def run_git(
    *arguments: str, environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run git in `folder`. Raises PinError where there is no git, TimeoutExpired after GIT_TIMEOUT_SECONDS."""
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            env=environment,
            timeout=GIT_TIMEOUT_SECONDS,
        )
    except FileNotFoundError as error:
        raise PinError("git is not installed; bring it with: apt-get install git") from error


def checkout(pin: Pin, url: str, tree: Path, downloads: Path) -> None:
    """Check the tag out into `tree` without a `.git`; the shallow clone is kept under `downloads`."""
    clone = downloads / f"llama.cpp-{pin.tag}-{hashlib.sha256(url.encode()).hexdigest()[:8]}.git"
    environment = git_environment(tree)

    def git(*arguments: str, what: str) -> str:
        try:
            done = run_git(*arguments, environment=environment)
        except subprocess.TimeoutExpired as error:
            raise PinError(f"{what}: no end after {GIT_TIMEOUT_SECONDS} s; without a git host: --from pypi") from error
        if done.returncode:
            raise PinError(f"{what} failed: {done.stderr.strip()}\n  without a git host: --from pypi")
        return done.stdout.strip()

    if not clone.exists():
        say(f"cloning {url} at {pin.tag}")
        with staged(clone) as staging:
            # A dead connection ends after a minute below 1 kB/s instead of hanging.
            slow = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"]
            shallow = ["clone", "--quiet", "--bare", "--depth", "1", "--branch", pin.tag]
            git(*slow, *shallow, url, str(staging), what=f"git clone of {url} at tag {pin.tag}")
    commit = git("--git-dir", str(clone), "rev-parse", "HEAD^{commit}", what="git rev-parse")
    if pin.commit and commit != pin.commit:
        shutil.rmtree(clone)
        raise PinError(f"tag {pin.tag} of {url} is commit {commit}, expected {pin.commit}: the tag was moved")
    if not pin.commit:
        say(f"tag {pin.tag} is commit {commit}; write it into patches/upstream.toml, [git] commit")
    environment["GIT_INDEX_FILE"] = str(tree.resolve().parent / f"{tree.name}.index")
    try:
        verbatim = ["-c", "core.autocrlf=false", "--git-dir", str(clone), "--work-tree", str(tree)]
        git(*verbatim, "checkout", "--force", commit, "--", ".", what=f"git checkout of {pin.tag}")
    finally:
        Path(environment["GIT_INDEX_FILE"]).unlink(missing_ok=True)


def apply_series(tree: Path, series: Series) -> None:
    """Apply every patch of the series, each after a check of the whole patch."""
    for patch in series.patches:
        for mode in (["--check"], []):
            arguments = ("apply", *mode, str(patch.path.resolve()))
            done = run_git(*arguments, environment=git_environment(tree), folder=tree)
            if done.returncode:
                raise PinError(f"patch {patch.name} does not apply:\n{explain_refusal(patch, done.stderr)}")


def explain_refusal(patch: Patch, stderr: str) -> str:
    """Turn git's `patch failed: FILE:LINE` into file and hunk: its number, and its lines as the patch has them."""
    hunks: dict[str, list[tuple[int, str]]] = {}
    file = ""
    lines = patch.path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line, following in itertools.pairwise([*lines, ""]):
        if line.startswith("--- ") and following.startswith("+++ "):
            file = line[4:].split("\t")[0].removeprefix("a/")
        elif match := re.match(r"@@ -(\d+)", line):
            hunks.setdefault(file, []).append((int(match[1]), line))
    explained = []
    for line in stderr.splitlines():
        failed = re.fullmatch(r"error: patch failed: (.+):(\d+)", line)
        if failed is None:
            if not line.endswith("patch does not apply"):
                explained.append(f"  git: {line}")
            continue
        of_file = hunks.get(failed[1], [])
        starts = [start for start, _ in of_file]
        if int(failed[2]) in starts:
            number = starts.index(int(failed[2])) + 1
            explained.append(f"  {failed[1]}: hunk {number} of {len(of_file)} ({of_file[number - 1][1]})")
        else:
            explained.append(f"  {failed[1]}: the hunk at line {failed[2]}")
    return "\n".join(explained)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """The options that fetching and building share."""
    default = os.environ.get("SLIPSTREAM_SOURCE") or "pypi"
    parser.add_argument("--patches", help="a series file in patches/, or none (default: series, or the variant's own)")
    parser.add_argument(
        "--from",
        dest="source",
        choices=["pypi", "git"],
        default=default,
        help="the sdist, by pip, or a shallow clone of the tag (default: SLIPSTREAM_SOURCE, now %(default)s)",
    )
    parser.add_argument("--git-url", metavar="URL", help="clone from here, not from the URL in upstream.toml")
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="a Python with pip, setuptools and setuptools-scm (default: SLIPSTREAM_PYTHON, this one, .venv)",
    )


def chosen_origin(options: argparse.Namespace) -> Origin:
    return Origin(options.source, options.git_url, options.python)


def main() -> None:
    parser = argparse.ArgumentParser(prog="fetch-llama-cpp", description=__doc__)
    add_source_options(parser)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    options = parser.parse_args()
    pin, series = load_pin(), load_series(options.patches or "series")
    fetch(pin, series, options.into, origin=chosen_origin(options), cache=cache_root())
    say(f"llama.cpp {series.stamp(pin)} is in {options.into}")
