"""How often a failed request is tried again, and when."""

import email.utils
import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from email.message import Message
from threading import Event
from typing import Self

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.limits import Limits

_log = logging.getLogger(__name__)

# 520 to 524 are Cloudflare's, which mirrors stand behind: the server there failed, or was not reached.
BUSY_STATUSES = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
# The hub's own way to say it: `RateLimit: "api";r=0;t=55`.
_RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})\b")


# What clients call headers; names are found whatever their case.
Headers = Mapping[str, str] | Message


class Retry(Exception):
    """The server may do it later. `str()` says what it answered; `after_seconds` is what it asked for."""

    def __init__(self, reason: str, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds


class Patience:
    """A budget of failures in a row; every byte that is new to the fetch fills it up again."""

    def __init__(self, what: str, limits: Limits, tell: Callable[[str], object] = _log.warning) -> None:
        self._what = what
        self._limits = limits
        self._tell = tell
        self._sleep: Callable[[float], object] = time.sleep
        self._failures = 0
        self._most_bytes = 0

    def until(self, stop: Event) -> Self:
        """Let `stop` cut its waits short."""
        self._sleep = stop.wait
        return self

    def progress(self, done_bytes: int) -> None:
        """`done_bytes` are there. Bytes that are fetched a second time are no progress."""
        if done_bytes > self._most_bytes:
            self._most_bytes = done_bytes
            self._failures = 0

    def fail(self, reason: str, after_seconds: float | None = None, *, counts: bool = True) -> None:
        """Wait before the next try; raises SlipstreamError when there is none. What does not `count` costs no try."""
        self._failures += counts
        limits = self._limits
        if self._failures > limits.retries:
            times = f"{self._failures} times in a row"
            raise SlipstreamError(Code.SOURCE_FAILED, f"{self._what}: {reason}, {times}; gave up")
        if after_seconds is not None and after_seconds > limits.longest_wait_seconds:
            raise SlipstreamError(
                Code.SOURCE_FAILED,
                f"{self._what}: {reason}, and asks to wait {after_seconds:.0f} s; "
                f"at most {limits.longest_wait_seconds:.0f} s are waited",
                retry_after_seconds=int(after_seconds),
            )
        backoff = min(limits.backoff_seconds * 2 ** max(0, self._failures - 1), limits.longest_backoff_seconds)
        # Jitter keeps many fetches that failed together from coming back together. Who asks for no wait still gets one.
        wait = max(after_seconds or 0.0, backoff * random.uniform(0.5, 1.0))
        if counts:
            self._tell(f"{self._what}: {reason}; try {self._failures} of {limits.retries} in {wait:.1f} s")
        self._sleep(wait)


def asked_wait_seconds(headers: Headers) -> float | None:
    """What Retry-After asks for, in seconds or as a date; else what the hub's RateLimit does."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", value):
        return float(value)
    if value:
        until, now = _moment(value), _moment(headers.get("Date", ""))
        # By the server's own clock where it tells it: ours may be wrong.
        return None if until is None else max(0.0, until - (time.time() if now is None else now))
    found = _RATE_LIMIT.search(headers.get("RateLimit", ""))
    return float(found[1]) if found else None


def _moment(date: str) -> float | None:
    """Unix time of a date in a header; None if it is none."""
    try:
        moment = email.utils.parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
