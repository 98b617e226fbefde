"""Writes the log from a thread: whoever reads it too slowly, or not at all, holds up nobody."""

import logging
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress

# The first line after a while is written at once, what follows it together: one by one they cost twice as much.
_TOGETHER_SECONDS = 0.2
_LINES_TOGETHER = 32
# Of a log that nobody reads this much is kept, then what comes is counted and left out.
_MOST_WAITING = 10_000
_FLUSH_SECONDS = 1.0
_POLL_SECONDS = 0.002


class LineWriter(logging.Handler):
    """Lines in order, to a file descriptor. What is not written when `flush` gives up is lost."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting: deque[logging.LogRecord] = deque()
        self._lost = 0
        self._is_writing = False
        self._news = threading.Event()
        self._hurry = threading.Event()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line until it is written. Its text is made now: what it tells of may change."""
        if len(self._waiting) >= _MOST_WAITING:
            self._lost += 1
            return
        try:
            record.msg, record.args = record.getMessage(), None
        except Exception:
            self.handleError(record)
            return
        self._waiting.append(record)
        if not self._news.is_set():
            self._news.set()

    def flush(self) -> None:
        """Until everything is written, for a second at most."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        self._hurry.set()
        while (self._waiting or self._is_writing) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._hurry.clear()

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._is_writing = True
            self._news.clear()
            while self._waiting:
                self._write([self._waiting.popleft() for _ in range(min(_LINES_TOGETHER, len(self._waiting)))])
            self._is_writing = False
            self._hurry.wait(_TOGETHER_SECONDS)

    def _write(self, records: list[logging.LogRecord]) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            message = f"{lost} lines of the log are missing here: it was read too slowly"
            records.append(logging.LogRecord("slipstream", logging.WARNING, "", 0, message, None, None))
        data = "".join(f"{line}\n" for line in map(self._line, records) if line is not None).encode(errors="replace")
        # A reader that has gone is no reason to stop.
        with suppress(OSError):
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:
                    # Another process that has it too may have set it not to wait.
                    select.select((), (self._descriptor,), ())

    def _line(self, record: logging.LogRecord) -> str | None:
        try:
            return self.format(record)
        except Exception:
            self.handleError(record)
            return None
