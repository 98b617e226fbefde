"""Brings the missing bytes of a file, by one connection or by as many as pay."""

import threading
import time

from orchestrator.store.fetching.board import Board
from orchestrator.store.fetching.digest import Follower
from orchestrator.store.fetching.growth import Growth
from orchestrator.store.fetching.partial import Partial
from orchestrator.store.fetching.worker import Worker
from orchestrator.store.fetching.xet import XetOffer, XetWorker
from orchestrator.store.http.limits import Limits
from orchestrator.store.http.retry import Patience
from orchestrator.store.progress import Progress

_TICK_SECONDS = 0.1


class Transfer:
    """One attempt at a file. `run` leaves it in `partial.data`, or raises StartOver, XetFailed or SlipstreamError."""

    def __init__(self, partial: Partial, follower: Follower, limits: Limits, patience: Patience) -> None:
        self._partial = partial
        self._limits = limits
        self._board = Board(partial, follower, limits)
        self._patience = patience.until(self._board.stop)
        self._growth = Growth(limits)
        self._workers: dict[int, Worker | XetWorker] = {}
        self._started_seconds = 0.0
        self._counted_bytes = 0

    def run(self, report: Progress, offer: XetOffer | None = None) -> None:
        """Bring what is missing, by xet if there is an offer. `report` is called from this thread, or from a worker."""
        board, name = self._board, self._partial.remote.name
        recorder = threading.Thread(target=self._keep_recording, name="record", daemon=True)
        recorder.start()
        total_bytes = board.total_bytes
        report.phase("fetching", total_bytes, name, board.done().bytes)
        try:
            if not board.ended.is_set():
                self._start(0, XetWorker(board, offer, self._limits) if offer else self._worker(0))
            while not board.ended.wait(_TICK_SECONDS):
                if total_bytes is None and (total_bytes := board.total_bytes) is not None:
                    report.phase("fetching", total_bytes, name, board.done().bytes)
                done_bytes = board.done().bytes
                report.advance(done_bytes)
                self._count(report)
                self._workers[0].watch()
                if offer is None and board.allows_ranges and total_bytes is not None:
                    self._adapt(done_bytes, total_bytes - done_bytes)
        finally:
            try:
                self._end(recorder)
            finally:
                self._count(report)
        report.advance(board.done().bytes)

    def _count(self, report: Progress) -> None:
        received_bytes = self._board.received_bytes
        report.downloaded(self._partial.remote.source, received_bytes - self._counted_bytes)
        self._counted_bytes = received_bytes

    def _worker(self, index: int) -> Worker:
        return Worker(self._board, self._partial.remote, self._limits, self._patience, index)

    def _start(self, index: int, worker: Worker | XetWorker) -> None:
        self._workers[index] = worker
        self._started_seconds = time.monotonic()
        worker.start()

    def _adapt(self, done_bytes: int, left_bytes: int) -> None:
        """As many connections as measurement says, and no more than a server takes."""
        now = time.monotonic()
        self._growth.measure(now, done_bytes, left_bytes)
        if any(worker.was_refused for worker in self._workers.values()):
            self._workers = {i: worker for i, worker in self._workers.items() if not worker.was_refused}
            self._growth.cap(sum(worker.is_alive() for worker in self._workers.values()))
        grown = self._growth.connections > self._board.connections
        self._board.grow(self._growth.connections)
        # A worker that lost its connection comes back, but not in a circle of failures.
        if not grown and (now - self._started_seconds < self._limits.backoff_seconds or self._is_tail(left_bytes)):
            return
        for index in range(1, self._growth.connections):
            if index not in self._workers or not self._workers[index].is_alive():
                self._start(index, self._worker(index))

    def _is_tail(self, left_bytes: int) -> bool:
        """Whether workers find nothing to do because the end is near."""
        return left_bytes < self._growth.connections * self._limits.segment_bytes

    def _keep_recording(self) -> None:
        while not self._board.ended.wait(self._limits.record_seconds):
            try:
                self._partial.record(self._board.done())
            except OSError as e:
                self._board.fail(self._partial.unwritable(e))

    def _end(self, recorder: threading.Thread) -> None:
        """Let everybody leave, record what is there, raise what went wrong."""
        board = self._board
        board.end()
        for worker in self._workers.values():
            worker.abort()
        for thread in (*self._workers.values(), recorder):
            thread.join()
        try:
            self._partial.record(board.done())
        except OSError as e:
            raise board.error or self._partial.unwritable(e) from e
        if board.error is not None:
            raise board.error
