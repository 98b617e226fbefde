"""Waiting for a condition instead of for time to pass."""

import time
from collections.abc import Callable
from typing import TypeVar

POLL_SECONDS = 0.01

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str, deadline_seconds: float = 10.0) -> T:
    """Call ``probe`` until it answers something true, and return that.

    Raises TimeoutError that names ``what`` and the last answer when the deadline passes.
    """
    end = time.monotonic() + deadline_seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_seconds:g} s: {what}; last answer: {answer!r}")
        time.sleep(POLL_SECONDS)
