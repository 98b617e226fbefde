"""The child's side of a job: `run(work)` is what the module of a Kind calls as a program.

The request comes as one JSON object on stdin, events go out as JSON lines on what was stdout. Whatever else is printed
goes to stderr, which is the orchestrator's log. It imports next to nothing: a child starts in milliseconds.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, BinaryIO

from orchestrator.errors import Code, SlipstreamError, internal_error, is_disk_full

_INTERVAL_SECONDS = 0.2
_LINE_CHARACTERS = 4000

Work = Callable[[dict[str, Any], "Reporter"], dict[str, Any]]


class Reporter:
    """How far the work is. May be used from several threads; `send` gets one event at a time."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._total_bytes: int | None = None
        self._sent_bytes = 0
        self._due = 0.0
        self._downloaded: Counter[str] = Counter()
        self._downloads_due = 0.0

    def phase(self, name: str, total_bytes: int | None = None, file: str | None = None, done_bytes: int = 0) -> None:
        """Begin a phase. `done_bytes` is what an earlier run has done of it, so that it counts for no rate."""
        with self._lock:
            self._total_bytes, self._sent_bytes = total_bytes, done_bytes
            self._due = time.monotonic() + _INTERVAL_SECONDS
            self._send(
                {"event": "phase", "phase": name, "total_bytes": total_bytes, "file": file, "done_bytes": done_bytes}
            )

    def advance(self, done_bytes: int) -> None:
        """Bytes done in this phase so far. Call it as often as is handy: about five a second are sent, and the last."""
        with self._lock:
            now = time.monotonic()
            if done_bytes == self._sent_bytes or (now < self._due and done_bytes != self._total_bytes):
                return
            self._sent_bytes, self._due = done_bytes, now + _INTERVAL_SECONDS
            self._send({"event": "advance", "done_bytes": done_bytes})

    def downloaded(self, source: str, count_bytes: int) -> None:
        """Count bytes that have come over the network, from a kind of source; those that were here are none."""
        with self._lock:
            self._downloaded[source] += count_bytes
            if time.monotonic() >= self._downloads_due:
                self._send_downloads()

    def flush(self) -> None:
        """Send what was counted and not sent yet."""
        with self._lock:
            self._send_downloads()

    def line(self, text: str) -> None:
        """Write a line for people; it is kept with the job."""
        with self._lock:
            for line in text.splitlines():
                self._send({"event": "line", "text": line[:_LINE_CHARACTERS]})

    def _send_downloads(self) -> None:
        self._downloads_due = time.monotonic() + _INTERVAL_SECONDS
        for source, count_bytes in (+self._downloaded).items():
            self._send({"event": "download", "source": source, "count_bytes": count_bytes})
        self._downloaded.clear()


def run(work: Work) -> None:
    """Do `work` on the request; report its result, or its error.

    A SlipstreamError becomes the error of the job. Anything else is an error of ours: the traceback goes to stderr.
    """
    events = _take_stdout()
    reporter = Reporter(lambda event: _write(events, event))
    outcome = _outcome(work, reporter)
    reporter.flush()
    _write(events, outcome)


def _outcome(work: Work, reporter: Reporter) -> dict[str, Any]:
    try:
        request = json.loads(sys.stdin.buffer.read())
        outcome = {"event": "result", "result": work(request, reporter)}
        _encoded(outcome)  # what is no JSON is an error of ours, like any other
        return outcome
    except SlipstreamError as e:
        return _failure(e)
    except OSError as e:
        if is_disk_full(e):
            return _failure(SlipstreamError(Code.DISK_FULL, "the disk is full", hint="make room and try again"))
        traceback.print_exc()
    except Exception:
        traceback.print_exc()
    return _failure(internal_error())


def _failure(error: SlipstreamError) -> dict[str, Any]:
    details = json.loads(json.dumps(error.details, default=str))
    what = {"code": str(error.code), "message": error.message, "hint": error.hint, "details": details}
    return {"event": "error", "error": what}


def _take_stdout() -> BinaryIO:
    """What was stdout, for events alone: prints of libraries, and of their children, go to stderr from now on."""
    fd = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(fd, "wb")


def _write(events: BinaryIO, event: dict[str, Any]) -> None:
    events.write(_encoded(event))
    events.flush()


def _encoded(event: dict[str, Any]) -> bytes:
    # A file name that is no UTF-8 has surrogates, which no JSON reader takes.
    text = json.dumps(event, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"
