"""Ties the life of a child process to ours, by the kernel: not even SIGKILL of the orchestrator leaves it behind.

As a program, `python -I -S tether.py PARENT_PID PROGRAM ARGUMENT...` asks the kernel to kill this process when its
parent dies, then becomes PROGRAM; the request outlives execve (prctl(2), PR_SET_PDEATHSIG). It imports nothing of
the project, to start in a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tethered(program: str, *arguments: str) -> list[str]:
    """The argv that runs `program` (an absolute path) tied to this process.

    Start it from the main thread: the kernel ties the signal to the thread that forks, not to the process.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), program, *arguments]


def main() -> None:
    """Set the signal, make sure the parent still lives, become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"tether: prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the request was made; then nobody would ever send the signal.
    if os.getppid() != parent:
        sys.exit("tether: the parent is gone")
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
