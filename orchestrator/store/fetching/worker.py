"""One connection of a fetch: asks for what is missing, checks the answer, writes."""

import threading

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.fetching.board import Board, Stopped
from orchestrator.store.fetching.ranges import UNBOUNDED, Claim
from orchestrator.store.http.answers import Asked, Body, accept
from orchestrator.store.http.connect import Broken
from orchestrator.store.http.limits import Limits
from orchestrator.store.http.retry import Patience, Retry
from orchestrator.store.http.session import Answer, Session
from orchestrator.store.remote import RemoteFile

_BUFFER_BYTES = 1 << 20
# What an address that was kept may answer when it holds no longer.
_STALE_STATUSES = (400, 401, 403, 404, 410)


class Worker(threading.Thread):
    """The first worker (index 0) stays until all is there, and its troubles are those of the fetch.

    Any other leaves at the first trouble: the first one's bytes do not depend on it. Its `was_refused` tells that the
    server answered, but would not give it what it asked for.
    """

    def __init__(self, board: Board, remote: RemoteFile, limits: Limits, patience: Patience, index: int) -> None:
        super().__init__(name=f"fetch-{index}", daemon=True)
        self._board = board
        self._remote = remote
        self._patience = patience
        self._index = index
        self._session = Session(limits)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.was_refused = False

    def run(self) -> None:
        try:
            self._work()
        except Stopped:
            pass
        except BaseException as e:
            if self._index == 0:
                self._board.fail(e)
            else:
                self.was_refused = True
        finally:
            self._session.close()

    def watch(self) -> None:
        """Its connection has a time-out of its own."""

    def abort(self) -> None:
        """End its wait for bytes."""
        self._session.abort()

    def _work(self) -> None:
        while (claim := self._board.claim(self._index)) is not None:
            try:
                self._bring(claim)
                continue
            except (Broken, Retry) as e:
                failure = e
            finally:
                self._board.release(claim)
            self._board.address = None
            if self._index > 0:
                self.was_refused = isinstance(failure, Retry)
                return
            self._patience.progress(self._board.done().bytes)
            # Where a server takes few connections, those of the others may be what it refuses this one for.
            alone = not self._board.is_worked_on
            self._patience.fail(str(failure), getattr(failure, "after_seconds", None), counts=alone)

    def _bring(self, claim: Claim) -> None:
        board = self._board
        is_rest = claim.stop >= (board.total_bytes or UNBOUNDED)
        asked = Asked(claim.position, None if is_rest else claim.stop, not (is_rest and claim.position == 0))
        answer = self._ask(asked)
        body = accept(answer, self._remote, asked, board.total_bytes, board.version)
        board.learn(body)
        began = claim.position
        end = UNBOUNDED if body.stop is None else body.stop
        while (room := min(claim.stop, end) - claim.position) > 0 or board.extend(claim, end):
            count = answer.read_into(self._buffer[:room])
            if count == 0:
                break
            if body.stop is None and claim.position + count == body.total_bytes and answer.read(1):
                raise self._too_long(body.total_bytes)
            board.write(claim, self._buffer[:count])
        if body.stop is None and claim.left_bytes > 0:
            self._end_here(body, claim)
        if claim.position == began and claim.left_bytes > 0:
            raise Retry("an answer without a byte came")

    def _end_here(self, body: Body, claim: Claim) -> None:
        """A body whose length was not told has ended: that is the size of the file, unless the size was known."""
        if body.total_bytes is not None:
            raise Broken("the connection was cut before the end")
        self._board.end_at(claim.position)

    def _too_long(self, expected_bytes: int) -> SlipstreamError:
        return SlipstreamError(
            Code.SOURCE_FAILED,
            f"{self._remote.name}: {self._remote.host} sends more than the {expected_bytes} bytes expected",
        )

    def _ask(self, asked: Asked) -> Answer:
        """Ask where redirects led before; ask from the start when that address holds no longer."""
        board, remote = self._board, self._remote
        if (address := board.address) is not None:
            answer = self._get(address, asked)
            if answer.status not in _STALE_STATUSES:
                return answer
            board.address = None
        answer = self._get(remote.url, asked)
        if answer.url != remote.url:
            board.address = answer.url
        return answer

    def _get(self, url: str, asked: Asked) -> Answer:
        return self._session.get(url, asked.headers(self._board.version), token_host=self._remote.token_host)
