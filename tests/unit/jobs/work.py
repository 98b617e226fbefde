"""The work of the tests' jobs: does the steps that its request lists, each `[name, argument...]`, see `work`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.jobs.child import Reporter, run
from orchestrator.tether import tethered

_STDOUT = os.dup(1)
_DEADLINE_SECONDS = 30.0


def note_pid(path: str) -> None:
    """Append the process id to a file."""
    _note(path, os.getpid())


def wait_for(path: str) -> None:
    """Go on when the file exists."""
    end = time.monotonic() + _DEADLINE_SECONDS
    while not Path(path).exists():
        assert time.monotonic() < end, f"nobody made {path}"
        time.sleep(0.005)


def start_grandchild(path: str) -> None:
    """A process of another session, tied to this one, that sleeps; its id goes to the file."""
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    _note(path, subprocess.Popen(tethered(*sleeper), start_new_session=True).pid)


def start_group_member(path: str) -> None:
    """A process of this group that nothing ties to this one."""
    _note(path, subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]).pid)


def fail(code: str, message: str, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
    raise SlipstreamError(Code(code), message, hint=hint, details=details)


def crash(message: str) -> None:
    raise RuntimeError(message)


def fill_the_disk() -> None:
    Path("/dev/full").write_text("x")


def never_end() -> None:
    """A thread that keeps the process from ending after its result."""
    threading.Thread(target=time.sleep, args=(_DEADLINE_SECONDS,)).start()


def write(text: str) -> None:
    """Past the reporter."""
    os.write(_STDOUT, text.encode())


def write_long(count: int) -> None:
    for _ in range(count):
        os.write(_STDOUT, b"x" * (1 << 20))


def ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def work(request: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    def write_lines(count: int) -> None:
        for i in range(count):
            reporter.line(f"line {i + 1}")

    steps: dict[str, Callable[..., Any]] = {
        "phase": reporter.phase,
        "advance": reporter.advance,
        "downloaded": reporter.downloaded,
        "line": reporter.line,
        "lines": write_lines,
        "touch": lambda path: Path(path).touch(),
        "print": print,
        "complain": lambda text: print(text, file=sys.stderr),
        "exit": os._exit,
        "die": lambda number: os.kill(os.getpid(), number),
    }
    own = (note_pid, wait_for, start_grandchild, start_group_member, fail, crash, fill_the_disk, never_end)
    steps |= {step.__name__: step for step in (*own, write, write_long, ignore_term)}
    for name, *arguments in request.get("steps", ()):
        steps[name](*arguments)
    return dict(request.get("result", {}))


def _note(path: str, pid: int) -> None:
    with Path(path).open("a") as file:
        file.write(f"{pid}\n")


if __name__ == "__main__":
    run(work)
