"""The tools a build needs, how they are run, and what identifies the compiler and the processor."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from llamacpp.console import Progress
from llamacpp.pin import ROOT, PinError

PASSED_ON = ("HOME", "TMPDIR", "CC", "CXX", "CUDAHOSTCXX", "ROCM_PATH")
BYTES_PER_JOB = 1_500_000_000


def search_path() -> str:
    """PATH with the virtual environments first: their cmake, ninja and ccache are the locked ones."""
    folders = [str(Path(sys.executable).parent)] if sys.prefix != sys.base_prefix else []
    return os.pathsep.join([*folders, str(ROOT / ".venv/bin"), os.environ.get("PATH", os.defpath)])


def compilers() -> tuple[list[str], list[str]]:
    """The C and C++ commands: CC and CXX, else what CMake would take."""
    return shlex.split(os.environ.get("CC") or "cc"), shlex.split(os.environ.get("CXX") or "c++")


def require(*names: str) -> None:
    """Raise PinError that names every missing tool, and the commands that bring them."""
    brought_by = {"git": "apt-get install git", "cmake": "make venv", "ninja": "make venv"}
    missing: dict[str, list[str]] = {}
    for name in names:
        if shutil.which(name, path=search_path()) is None:
            missing.setdefault(brought_by.get(name, "apt-get install g++"), []).append(name)
    if missing:
        lines = [f"  {', '.join(tools)}: bring it with: {command}" for command, tools in missing.items()]
        raise PinError("what a build needs is not installed:\n" + "\n".join(lines))


def compiler_identity() -> str:
    """Name, version and target of the C++ compiler."""
    cc, cxx = compilers()
    if not all(shutil.which(command[0], path=search_path()) for command in (cc, cxx)):
        require(cc[0], cxx[0], "git", "cmake", "ninja")
    words = [
        subprocess.run([*cxx, flag], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        for flag in ("--version", "-dumpmachine")
    ]
    return ", ".join(words)


def processor_identity() -> str:
    """Digest of the processor's instruction sets: what `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU implementer", "CPU part")
    facts = sorted({" ".join(sorted(line.split())) for line in lines if line.startswith(names)})
    return hashlib.sha256("\n".join([platform.machine(), *facts]).encode()).hexdigest()


def default_jobs() -> int:
    """One job a processor, as far as the free memory goes: the larger files take over 1 GB each to compile."""
    processors = len(os.sched_getaffinity(0))
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return max(1, min(processors, int(line.split()[1]) * 1024 // BYTES_PER_JOB))
    return processors


def build_environment(work: Path, cache: Path) -> dict[str, str]:
    """A whole environment: nothing of the caller's, such as CFLAGS, changes a result without changing its key."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("CCACHE_")}
    return kept | {
        "PATH": search_path(),
        "LC_ALL": "C",
        # llama.cpp asks git for a commit; it must not find the repository a cache may happen to lie in.
        "GIT_CEILING_DIRECTORIES": str(work),
        "CCACHE_DIR": str(cache / "ccache"),
        # Paths below `work` are hashed and compiled relative to the build folder, so that every key shares objects.
        "CCACHE_BASEDIR": str(work),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_COMPILERCHECK": "content",
    }


def run_logged(command: list[str], log: Path, environment: dict[str, str]) -> None:
    """Run `command` with its output in `log` and ninja's counters as progress; raise PinError with the log's tail."""
    progress = Progress()
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                if step := re.match(r"\[(\d+)/(\d+)\] (?:Building \w+ object )?(.*)", line):
                    progress.show(int(step[1]), int(step[2]), step[3].rsplit("/", 1)[-1])
            status = process.wait()
        finally:
            if process.poll() is None:
                # The whole group: cmake does not pass a signal on to what it runs.
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
            progress.end()
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"  {line}" for line in lines[-30:])
        raise PinError(f"{command[0]} failed with exit status {status}; the end of {log}:\n{tail}")


def read_statistics(text: str) -> tuple[list[str], int]:
    """Read ccache's statistics log: the files that were compiled, and how many came from the cache."""
    compiled: list[str] = []
    files = 0
    for entry in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        name, *results = entry.split()
        files += 1
        if not {"direct_cache_hit", "preprocessed_cache_hit"} & set(results):
            compiled.append(name.removeprefix("../llama.cpp/"))
    return sorted(compiled), files - len(compiled)
