"""Many requests at a time, from threads: each waits for one answer."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.cli.traffic.requests import CUT_OFF, Outcome, Plan, Request

# How long an interrupted generator waits for threads whose answer is just coming to an end.
_LEAVE_SECONDS = 0.5

Ask = Callable[[Request], Outcome]


@dataclass(frozen=True)
class Limits:
    """How much, how many at a time, and how fast; None is no limit."""

    concurrency: int
    seconds: float | None = None
    requests: int | None = None
    per_second: float | None = None


class Generator:
    """Starts requests of a plan until a limit is reached, then waits for those that run."""

    def __init__(self, plan: Plan, limits: Limits, ask: Ask) -> None:
        self._plan, self._limits, self._ask = plan, limits, ask
        self._numbers: Iterator[int] = itertools.count()
        self._arrivals = None if limits.per_second is None else plan.arrivals(limits.per_second)
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []
        self._running: dict[int, tuple[Request, float]] = {}
        self._is_over = threading.Event()
        self._broken: BaseException | None = None
        self._began = time.monotonic()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """Since the first request could start; once all have ended, until then."""
        return (self._ended or time.monotonic()) - self._began

    @property
    def running(self) -> int:
        """Requests that wait for the end of their answer."""
        with self._lock:
            return len(self._running)

    def outcomes(self) -> list[Outcome]:
        """Of all requests that have ended."""
        with self._lock:
            return list(self._outcomes)

    def run(self, every_seconds: float, show: Callable[[], None]) -> None:
        """Return when all requests have ended, calling `show` now and then.

        Ctrl-C is an ordinary end: no more requests start, and what runs is cut off.
        """
        # As daemons: an answer that nobody waits for any longer does not hold up the end of the process.
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self._limits.concurrency)]
        self._began = time.monotonic()
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():
                    worker.join(every_seconds)
                    show()
        except KeyboardInterrupt:
            self._cut_off(workers)
        self._ended = time.monotonic()
        if self._broken is not None:
            raise self._broken

    def _cut_off(self, workers: list[threading.Thread]) -> None:
        self._is_over.set()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            now = time.monotonic()
            self._outcomes += [
                Outcome(request, now - began, reason=CUT_OFF) for request, began in self._running.values()
            ]
            self._running.clear()

    def _work(self) -> None:
        try:
            while (request := self._next()) is not None:
                outcome = self._ask(request)
                with self._lock:
                    # One that was cut off meanwhile is told already.
                    if self._running.pop(request.number, None) is not None:
                        self._outcomes.append(outcome)
        except BaseException as e:
            self._broken = e
            self._is_over.set()

    def _next(self) -> Request | None:
        """The next request, when it is due; None when no more are to start."""
        with self._lock:
            number = next(self._numbers)
            due = 0.0 if self._arrivals is None else self._arrivals.next()
        limits = self._limits
        if limits.requests is not None and number >= limits.requests:
            return None
        if limits.seconds is not None and max(due, time.monotonic() - self._began) >= limits.seconds:
            return None
        if self._is_over.wait(max(0.0, self._began + due - time.monotonic())):
            return None
        request = self._plan.request(number)
        with self._lock:
            self._running[number] = (request, time.monotonic())
        return request
