"""How many connections pay: tried by measurement, since neither the line nor the server tells. Pure."""

from orchestrator.store.http.limits import Limits

# A step that gains less is noise, and not worth the server's trouble.
_GAIN_RATIO = 1.15


class Growth:
    """Doubles the connections while that raises the rate; goes back a step when it does not, and stays there."""

    def __init__(self, limits: Limits) -> None:
        self._measure_seconds = limits.measure_seconds
        self._worth_seconds = limits.worth_seconds
        self._most = limits.connections
        self._before = 1
        self._best_rate = 0.0
        self._window: tuple[float, int] | None = None
        self._is_warming = True
        self._is_settled = limits.connections < 2
        self.connections = 1

    def cap(self, connections: int) -> None:
        """The server takes no more than this."""
        self._most = max(1, connections)
        self.connections = min(self.connections, self._most)
        self._is_settled = True

    def measure(self, now_seconds: float, done_bytes: int, left_bytes: int) -> None:
        """`done_bytes` are there, `left_bytes` are not; `connections` is what to have from now on."""
        if self._is_settled:
            return
        if self._window is None:
            self._window = (now_seconds, done_bytes)
            return
        began, bytes_then = self._window
        if now_seconds - began < self._measure_seconds:
            return
        rate = (done_bytes - bytes_then) / (now_seconds - began)
        self._window = (now_seconds, done_bytes)
        if self._is_warming or rate == 0:
            self._is_warming = rate == 0
            return
        self._decide(rate, left_bytes)

    def _decide(self, rate: float, left_bytes: int) -> None:
        if self.connections > 1 and rate < self._best_rate * _GAIN_RATIO:
            self.connections = self._before
            self._is_settled = True
            return
        self._best_rate = max(rate, self._best_rate)
        wanted = min(self.connections * 2, self._most)
        if left_bytes / rate < self._worth_seconds:
            return
        self._before, self.connections = self.connections, wanted
        self._is_settled = wanted == self._before
        self._is_warming = True
