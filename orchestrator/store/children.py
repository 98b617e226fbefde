"""Other programs that work of this room runs: tied to us, in a session of their own, gone when the block ends."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

from orchestrator.tether import tethered


@contextmanager
def child(
    *argv: str, environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program (an absolute path) whose output goes to files, which nobody has to wait for.

    When the block ends, its whole group is killed if it still runs, and it is reaped.
    """
    process = subprocess.Popen(
        tethered(*argv), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
