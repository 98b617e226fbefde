import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.fetching.digest import Follower
from tests.support.fetching import made

CONTENT = made(5_000_000)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_it_digests_behind_the_writer(fd: int) -> None:
    follower = Follower(fd, "toy.gguf")
    seen: list[int] = []
    for at in range(0, len(CONTENT), 1_500_000):
        os.pwrite(fd, CONTENT[at : at + 1_500_000], at)
        follower.follow(min(at + 1_500_000, len(CONTENT)))
    assert follower.finish(len(CONTENT), seen.append) == hashlib.sha256(CONTENT).hexdigest()
    assert seen == [] or seen[-1] <= len(CONTENT)


def test_it_reads_what_lies_there_not_what_was_said(fd: int) -> None:
    os.pwrite(fd, bytes(len(CONTENT)), 0)
    follower = Follower(fd, "toy.gguf")
    assert follower.finish(len(CONTENT), lambda done: None) == hashlib.sha256(bytes(len(CONTENT))).hexdigest()


def test_an_empty_file_has_a_digest(fd: int) -> None:
    assert Follower(fd, "toy.gguf").finish(0, lambda done: None) == hashlib.sha256(b"").hexdigest()


def test_a_file_that_is_shorter_than_what_was_written_is_an_error(fd: int) -> None:
    follower = Follower(fd, "toy.gguf")
    with pytest.raises(SlipstreamError, match=r"toy\.gguf could not be read back") as caught:
        follower.finish(10, lambda done: None)
    assert caught.value.code is Code.SOURCE_FAILED


def test_it_can_be_stopped_at_any_time(fd: int) -> None:
    os.pwrite(fd, CONTENT, 0)
    follower = Follower(fd, "toy.gguf")
    follower.follow(len(CONTENT))
    follower.stop()
    follower.stop()
