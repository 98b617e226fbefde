"""Which llama.cpp this machine's Ollama runs: asked of its own llama-server."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.children import child

_BINARY = "llama-server"
_KNOWN_FOLDERS = (Path("/usr/local/lib/ollama"), Path("/usr/lib/ollama"))
_DEADLINE_SECONDS = 20.0
_LONGEST_ANSWER_BYTES = 1 << 16
# `version: 0.3.0-dev (build 1, commit d222767c7)`; before mid-2026 `version: 5600 (d222767c7)`.
_VERSION = re.compile(
    r"^version: (?P<version>\S+)(?: \((?:build (?P<build>\d+), commit )?(?P<commit>[^()\s]+)\))?\s*$", re.M
)


@dataclass(frozen=True)
class RunnerVersion:
    """What a runner says of itself. `commit` is llama.cpp's, on top of which Ollama has patches of its own."""

    version: str
    build: int | None
    commit: str | None

    def __str__(self) -> str:
        build = "" if self.build is None else f", build {self.build}"
        return f"llama.cpp {self.version}{build}, commit {self.commit or 'unknown'}"


def runner_version(folder: Path | None = None) -> RunnerVersion | None:
    """Version of the llama-server in an Ollama library folder, or in the first known one; None where there is none.

    Blocks while it runs. SlipstreamError source_failed when it does not answer.
    """
    folders = _folders() if folder is None else iter((folder,))
    binary = next((path for f in folders if os.access(path := (f / _BINARY).absolute(), os.X_OK)), None)
    if binary is None or not binary.is_file():
        return None
    said = _ask(binary)
    if (found := _VERSION.search(said)) is None:
        raise SlipstreamError(
            Code.SOURCE_FAILED,
            f"Ollama's llama-server --version said {said[:200]!r}, expected a line such as 'version: 0.3.0-dev "
            "(build 1, commit d222767c7)'",
        )
    build = found["build"] or (found["version"] if found["version"].isdecimal() else None)
    return RunnerVersion(found["version"], int(build) if build else None, found["commit"])


def _folders() -> Iterator[Path]:
    """OLLAMA_LIB_DIR alone if it is set; else beside the `ollama` of PATH, then where its packages put it."""
    if named := os.environ.get("OLLAMA_LIB_DIR"):
        yield Path(named)
        return
    if program := shutil.which("ollama"):
        yield Path(os.path.realpath(program)).parent.parent / "lib" / "ollama"
    yield from _KNOWN_FOLDERS


def _ask(binary: Path) -> str:
    """Both outputs of `--version`; the program gets no setting of ours and may load libraries of its own folder."""
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(binary.parent), "HOME": "/nonexistent"}
    with tempfile.TemporaryFile() as output:
        with child(str(binary), "--version", environment=environment, stdout=output, stderr=output) as process:
            try:
                process.wait(_DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                raise SlipstreamError(
                    Code.SOURCE_FAILED,
                    f"Ollama's llama-server --version did not answer within {_DEADLINE_SECONDS:.0f} s",
                ) from None
        output.seek(0)
        return output.read(_LONGEST_ANSWER_BYTES).decode(errors="replace")
