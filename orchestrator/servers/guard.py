"""Runs between the orchestrator and llama-server: `python -I guard.py PARENT_PID PROGRAM ARGUMENT...`.

Asks the kernel to kill this process when its parent dies, then becomes the program; the request outlives execve
(prctl(2), PR_SET_PDEATHSIG). So not even SIGKILL of the orchestrator leaves a server behind. Stand-alone: it
imports nothing of the project, to start in a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the signal, make sure the parent still lives, become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"guard: prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the request was made; then nobody would ever send the signal.
    if os.getppid() != parent:
        sys.exit("guard: the orchestrator is gone")
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
