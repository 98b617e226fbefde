"""What a child prints on stderr: into our log, and its last lines into the error of a job that says nothing else."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable

from orchestrator.jobs.secrets import without_folders

_TAIL_LINES = 20
_LINE_CHARACTERS = 2000
# A child that floods must not fill the log: this many lines at once, then so many a second.
_BURST_LINES = 500
_LINES_PER_SECOND = 50
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|(During handling|The above exception).* exception")
_log = logging.getLogger(__name__)


class Complaints:
    """Lines of one child; `mask` hides the secrets in them."""

    def __init__(self, name: str, mask: Callable[[str], str]) -> None:
        self._name = name
        self._mask = mask
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._is_in_traceback = False
        self._allowance, self._since = float(_BURST_LINES), time.monotonic()
        self._dropped_lines = 0

    def add(self, line: str) -> None:
        """Take a line."""
        line = self._mask(line.rstrip()[:_LINE_CHARACTERS])
        self._write(line)
        if line and not self._belongs_to_traceback(line):
            self._tail.append(without_folders(line))

    def tail(self) -> list[str]:
        """The last lines, without tracebacks and folders: a client may see them."""
        return list(self._tail)

    def _belongs_to_traceback(self, line: str) -> bool:
        if _TRACEBACK.search(line):
            self._is_in_traceback = True
            return True
        if not self._is_in_traceback:
            return False
        # Its last line, which names the exception, is the first that is not indented.
        self._is_in_traceback = line[0].isspace()
        return True

    def _write(self, line: str) -> None:
        now = time.monotonic()
        self._allowance = min(_BURST_LINES, self._allowance + (now - self._since) * _LINES_PER_SECOND)
        self._since = now
        if self._allowance < 1:
            self._dropped_lines += 1
            return
        self._allowance -= 1
        if self._dropped_lines:
            _log.warning("%s: (%d lines dropped)", self._name, self._dropped_lines)
            self._dropped_lines = 0
        _log.info("%s: %s", self._name, line)
