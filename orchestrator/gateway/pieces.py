"""The pieces of an answer as they pass: when they came, and the last of them. None is parsed."""

from bisect import bisect_left
from collections import deque
from time import monotonic

from orchestrator.telemetry import TOKEN_BUCKETS, Gaps

# llama-server writes an event at a time, so the last pieces of a stream hold all of its last event.
_KEPT_PIECES = 16
KEPT_BYTES = 4 << 10
# No tokens: llama-server's own sign of life in a stream (`sse_ping_interval`), and the end where it comes by itself.
_EMPTY = (b":\n\n", b"data: [DONE]\n\n")
_PROGRESS = b'"prompt_progress":'


class Pieces:
    """What is kept of them: `first` and `last` are when they came, by `time.monotonic`, 0 before.

    `is_stream`: gaps between them say something. `shows_progress`: there are events while the prompt is read,
    which are no tokens.
    """

    __slots__ = ("_counts", "_longest", "_pieces", "first", "is_stream", "last", "shows_progress")

    def __init__(self) -> None:
        self.first = 0.0
        self.last = 0.0
        self.is_stream = False
        self.shows_progress = False
        self._counts = [0] * (len(TOKEN_BUCKETS) + 1)
        self._longest = 0.0
        self._pieces: deque[bytes] = deque(maxlen=_KEPT_PIECES)

    def add(self, piece: bytes) -> None:
        """The next piece, which has just come. Called for each, so it does next to nothing."""
        if piece in _EMPTY:
            return
        now = monotonic()
        if self.last:
            gap = now - self.last
            self._counts[bisect_left(TOKEN_BUCKETS, gap)] += 1
            if gap > self._longest:
                self._longest = gap
        elif self.shows_progress and _PROGRESS in piece:
            return
        else:
            self.first = now
        self.last = now
        if len(piece) >= KEPT_BYTES:
            self._pieces.clear()
        self._pieces.append(piece)

    @property
    def gaps(self) -> Gaps | None:
        """The gaps between them; None where there are none, or where they say nothing."""
        if not self.is_stream or self.last <= self.first:
            return None
        return Gaps(self._counts, self.last - self.first, self._longest)

    @property
    def end(self) -> bytes:
        """The last of the answer, 4 KiB at most."""
        return b"".join(self._pieces)[-KEPT_BYTES:]
