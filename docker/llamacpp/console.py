"""What people see: progress on standard error, so that standard output can hold a path alone."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from llamacpp.pin import PinError


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(main: Callable[[], None]) -> None:
    """Run `main`; PinError becomes one message and exit status 1. SIGTERM cleans up as Ctrl-C does."""

    def terminated(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, terminated)
    try:
        main()
    except PinError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line at the start and every minute."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._next_line = self._started
        self._width = 0

    def show(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        elapsed = int(now - self._started)
        text = f"[{done}/{total}] {elapsed // 60}:{elapsed % 60:02} {what}"[:100]
        if self._terminal:
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif now >= self._next_line:
            self._next_line = now + 60
            say(text)

    def end(self) -> None:
        if self._terminal and self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
