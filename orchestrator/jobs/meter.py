"""Rate and time left, from the bytes that children report."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from orchestrator.schemas import JobProgress

_WINDOW_SECONDS = 5.0
_SHORTEST_SPAN_SECONDS = 0.5
_SAMPLE_SECONDS = 0.1


class Meter:
    """The progress of a job's present phase. The rate is that of the last five seconds, so a stall is seen."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._shown: JobProgress | None = None
        # Time and bytes moved since the phase began, over all its files.
        self._samples: deque[tuple[float, int]] = deque()
        self._moved_bytes = 0

    def begin(self, phase: str, total_bytes: int | None, file: str | None, done_bytes: int) -> None:
        """A phase begins, or the next file of the same phase, which goes on at the same rate."""
        if self._shown is None or self._shown.phase != phase:
            self._samples = deque([(self._clock(), 0)])
            self._moved_bytes = 0
        self._shown = JobProgress(phase=phase, total_bytes=total_bytes, file=file, done_bytes=done_bytes)

    def advance(self, done_bytes: int) -> None:
        """Bytes done in the phase so far; fewer than before when the work began it anew."""
        if self._shown is None:
            self.begin("working", None, None, 0)
        assert self._shown is not None
        now = self._clock()
        self._moved_bytes += max(0, done_bytes - self._shown.done_bytes)
        if len(self._samples) > 1 and now < self._samples[-2][0] + _SAMPLE_SECONDS:
            self._samples.pop()
        self._samples.append((now, self._moved_bytes))
        self._shown = self._shown.model_copy(update={"done_bytes": done_bytes})
        self._drop_old(now)

    def read(self) -> JobProgress | None:
        """Progress as of now; None before anything was reported."""
        if self._shown is None:
            return None
        rate = self._rate()
        left = None if self._shown.total_bytes is None else max(0, self._shown.total_bytes - self._shown.done_bytes)
        eta = round(left / rate, 1) if rate and left is not None else None
        return self._shown.model_copy(update={"rate_bytes_per_second": rate, "eta_seconds": eta})

    def _rate(self) -> float | None:
        now = self._clock()
        self._drop_old(now)
        since, moved_before = self._samples[0]
        span = min(now - since, _WINDOW_SECONDS)
        if span < _SHORTEST_SPAN_SECONDS or not self._moved_bytes:
            return None
        return round((self._moved_bytes - moved_before) / span, 1)

    def _drop_old(self, now: float) -> None:
        # The newest sample from before the window stays: the window begins with what it says.
        while len(self._samples) > 1 and self._samples[1][0] <= now - _WINDOW_SECONDS:
            self._samples.popleft()
