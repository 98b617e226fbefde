"""What can go wrong between a hub and who fetches from it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How an answer with a file's bytes is spoiled."""

    CUT = "cut"
    """The connection ends after `after_bytes` of the body."""
    STALL = "stall"
    """Nothing comes after `after_bytes` of the body, and the connection stays."""
    OTHER_START = "other start"
    """A range is answered with one of the same length that starts `after_bytes` earlier, and says so."""
    SHORT = "short"
    """A range is answered with `after_bytes` less than its Content-Range says."""
    WHOLE = "whole"
    """A range is answered with 200 and the whole file."""
    OTHER_ETAG = "other etag"
    """A range is answered with 206 and another ETag, whatever If-Range said."""
    STATUS = "status"
    """`status`, with `retry_after` and `error_code` where given."""
    WRONG_BYTES = "wrong bytes"
    """As many bytes as there should be, but one of them is another."""
    PAGE = "page"
    """A web page with 200."""
    NO_LENGTH = "no length"
    """The body comes in chunks, and nobody says how long it is."""


_ONLY_RANGES = (Kind.OTHER_START, Kind.SHORT, Kind.WHOLE, Kind.OTHER_ETAG)


@dataclass
class Fault:
    """A fault that the next `times` fitting requests meet, once `skip` of them have passed."""

    kind: Kind
    path: str = ""
    times: int = 1
    skip: int = 0
    after_bytes: int = 0
    status: int = 503
    retry_after: str | None = None
    error_code: str | None = None
    on_api: bool = False
    """Whether it meets calls of the API in place of files."""
    then: Callable[[], object] = lambda: None
    """Called when a request meets it, before the answer is sent."""

    def meets(self, path: str, *, is_ranged: bool, on_api: bool) -> bool:
        """Whether this request has the fault; counts."""
        is_416 = self.kind is Kind.STATUS and self.status == 416
        fits = self.path in path and on_api == self.on_api and (is_ranged or not (self.kind in _ONLY_RANGES or is_416))
        if not fits or self.times <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        self.then()
        return True

    def headers(self, **more: Any) -> dict[str, str]:
        """Headers of an answer that is a status alone."""
        named = {"Retry-After": self.retry_after, "X-Error-Code": self.error_code} | more
        return {name: str(value) for name, value in named.items() if value is not None}
