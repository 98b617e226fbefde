"""What the connections of one fetch share: the plan, the file, what is known of the file elsewhere."""

import os
import threading
import time

from orchestrator.errors import SlipstreamError
from orchestrator.store.fetching.digest import Follower
from orchestrator.store.fetching.partial import Partial
from orchestrator.store.fetching.ranges import UNBOUNDED, Claim, Plan, Ranges
from orchestrator.store.http.answers import Body, strong_etag
from orchestrator.store.http.limits import Limits

# A tail is shared out down to halves of this size.
_LEAST_SPLIT_BYTES = 8 << 20
# Addresses that a hub signs hold for an hour or so.
_ADDRESS_SECONDS = 300.0


class Stopped(Exception):
    """The fetch has come to its end, for good or bad; a worker that hears of it leaves."""


class Board:
    """Safe for threads. Facts about the file are in `partial`; the first answer sets them."""

    def __init__(self, partial: Partial, follower: Follower, limits: Limits) -> None:
        self._partial = partial
        self._follower = follower
        self._limits = limits
        self._plan = Plan(partial.total_bytes, partial.done)
        self._changed = threading.Condition()
        self._address: tuple[str, float] | None = None
        self._is_known = bool(partial.done)
        self.connections = 1
        self.received_bytes = 0
        """What came by this fetch, also twice."""
        self.allows_ranges = self._is_known
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.ended = threading.Event()
        follower.follow(partial.done.front)
        if self._plan.is_complete:
            self.ended.set()

    @property
    def total_bytes(self) -> int | None:
        """Size of the file, once it is known."""
        return self._partial.total_bytes

    @property
    def version(self) -> str | None:
        """What the server calls this version of the file, where it does."""
        return self._partial.version

    def done(self) -> Ranges:
        """What is there."""
        with self._changed:
            return self._plan.done()

    def claim(self, index: int = 0) -> Claim | None:
        """What worker `index` is to bring next. The first one waits for it; None tells any other to leave."""
        with self._changed:
            while index < self.connections and not self.stop.is_set() and not self._plan.is_complete:
                is_alone = self.connections == 1
                claim = self._plan.claim(None if is_alone else self._limits.segment_bytes)
                if claim is None and not is_alone:
                    claim = self._plan.split(_LEAST_SPLIT_BYTES)
                if claim is not None or index > 0:
                    return claim
                self._changed.wait(1.0)
            return None

    def extend(self, claim: Claim, stop: int) -> bool:
        """Let a worker whose answer goes on up to `stop` go on, unless others bring what follows."""
        with self._changed:
            limit_bytes = UNBOUNDED if self.connections == 1 else self._limits.segment_bytes
            return not self.stop.is_set() and self._plan.extend(claim, min(stop, claim.stop + limit_bytes))

    def release(self, claim: Claim) -> None:
        """A worker is done with a claim, or cannot go on with it."""
        with self._changed:
            self._plan.release(claim)
            self._changed.notify_all()

    @property
    def is_worked_on(self) -> bool:
        """Whether anybody is bringing anything."""
        with self._changed:
            return self._plan.is_claimed

    def learn(self, body: Body) -> None:
        """Take over what an answer says of the file that was not known; refuse it where the disk has no room."""
        partial = self._partial
        with self._changed:
            self.allows_ranges = self.allows_ranges or body.allows_ranges
            if strong_etag(partial.version) is None:
                partial.version = body.version or partial.version
            is_news = not self._is_known or (partial.total_bytes is None and body.total_bytes is not None)
            self._is_known = True
            if partial.total_bytes is None and body.total_bytes is not None:
                self._end_at(body.total_bytes)
        if is_news:
            partial.check_space()

    def write(self, claim: Claim, data: memoryview) -> None:
        """Write the next bytes of a claim; then they count."""
        if self.stop.is_set():
            raise Stopped
        at = claim.position
        try:
            while data:
                count = os.pwrite(self._partial.fd, data, at)
                data, at = data[count:], at + count
        except OSError as e:
            self.fail(self._unwritable(e))
            raise Stopped from e
        with self._changed:
            self.received_bytes += at - claim.position
            self._plan.advance(claim, at - claim.position)
            self._follower.follow(self._plan.front)
            if claim.left_bytes <= 0 and self._plan.is_complete:
                self.ended.set()
                self._changed.notify_all()

    def end_at(self, total_bytes: int) -> None:
        """The end of a file of unknown size was seen."""
        with self._changed:
            self._end_at(total_bytes)
            if self._plan.is_complete:
                self.ended.set()
                self._changed.notify_all()

    def _end_at(self, total_bytes: int) -> None:
        self._partial.total_bytes = total_bytes
        self._plan.end_at(total_bytes)
        if self._plan.is_complete:
            self.ended.set()

    def grow(self, connections: int) -> None:
        """So many connections from now on; claims shrink to what one of several brings at a time."""
        with self._changed:
            if connections > 1 and self.connections == 1:
                self._plan.trim(self._limits.segment_bytes)
            self.connections = connections
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The fetch cannot go on; the first reason counts, and none does once all is there."""
        with self._changed:
            if not self.ended.is_set():
                self.error = error
            self.stop.set()
            self.ended.set()
            self._changed.notify_all()

    def end(self) -> None:
        """Whoever still works or waits is to leave."""
        with self._changed:
            self.stop.set()
            self.ended.set()
            self._changed.notify_all()

    @property
    def address(self) -> str | None:
        """Where redirects led to lately, so that not every part asks the hub again. A secret: it may be signed."""
        with self._changed:
            if self._address is None or time.monotonic() - self._address[1] > _ADDRESS_SECONDS:
                return None
            return self._address[0]

    @address.setter
    def address(self, address: str | None) -> None:
        with self._changed:
            self._address = None if address is None else (address, time.monotonic())

    def _unwritable(self, error: OSError) -> SlipstreamError:
        total_bytes = self.total_bytes
        need_bytes = None if total_bytes is None else total_bytes - self.done().bytes
        return self._partial.unwritable(error, need_bytes)
