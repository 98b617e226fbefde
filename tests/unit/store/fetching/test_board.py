import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.fetching.board import Board
from orchestrator.store.fetching.digest import Follower
from orchestrator.store.fetching.partial import Partial, hold
from orchestrator.store.fetching.worker import Worker
from orchestrator.store.http.retry import Patience
from orchestrator.store.remote import RemoteFile
from tests.support.fetching import QUICK, partial_of
from tests.support.hub import Hub
from tests.support.stored import Told


@pytest.fixture
def remote(hub: Hub) -> RemoteFile:
    return RemoteFile(f"{hub.url}/files/gone.gguf", "gone.gguf", 1000)


@pytest.fixture
def board(remote: RemoteFile, tmp_path: Path) -> Iterator[Board]:
    folder = partial_of(tmp_path)
    with hold(folder, Told(), remote.name):
        partial = Partial(folder, remote)
        follower = Follower(partial.fd, remote.name)
        yield Board(partial, follower, QUICK)
        follower.stop()
        partial.close()


def test_an_address_is_kept_for_a_while_and_so_is_the_next_one(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert board.address is None
    for address in ("http://content/1", "http://content/2"):
        board.address = address
        now += 299
        assert board.address == address
        now += 2
        assert board.address is None
    board.address = "http://content/3"
    board.address = None
    assert board.address is None


def test_trouble_of_the_first_worker_is_that_of_the_fetch(board: Board, remote: RemoteFile) -> None:
    # One that counted as refused would be taken off the list of workers while the fetch still asks for it.
    worker = Worker(board, remote, QUICK, Patience("gone.gguf", QUICK), 0)
    worker.run()
    assert not worker.was_refused
    assert isinstance(board.error, SlipstreamError) and board.error.code is Code.SOURCE_NOT_FOUND


def test_trouble_of_another_worker_is_its_own(board: Board, remote: RemoteFile) -> None:
    board.grow(2)
    worker = Worker(board, remote, QUICK, Patience("gone.gguf", QUICK), 1)
    worker.run()
    assert worker.was_refused and board.error is None and not board.is_worked_on
