"""Commands that tests run: each must succeed within its deadline, or what it said is the failure."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import REPOSITORY

COMMAND_SECONDS = 120.0


def must(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path = REPOSITORY,
    timeout_seconds: float = COMMAND_SECONDS,
) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    said = f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    return done.stdout
