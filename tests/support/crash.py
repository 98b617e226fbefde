"""Kills work between any two of its changes to the file system, without waiting for chance."""

import os
import sys
from collections.abc import Callable
from typing import Any

_DIED, _FINISHED, _FAILED = 9, 0, 1
# Audit events that come right before a change (docs.python.org, "Audit events table").
_CHANGES = frozenset(
    {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod", "os.truncate"}
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def dies_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work` in a forked process that is gone before its change number `step`, from 1; False if it has ended.

    Raises AssertionError when `work` failed by itself.
    """
    pid = os.fork()
    if pid == 0:
        left = step

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING):
                left -= 1
                if left == 0:
                    os._exit(_DIED)

        sys.addaudithook(hook)
        try:
            work()
        except BaseException as e:
            os.write(2, f"{type(e).__name__}: {e}\n".encode())
            os._exit(_FAILED)
        os._exit(_FINISHED)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (_DIED, _FINISHED), f"the work failed by itself before step {step}"
    return status == _DIED
