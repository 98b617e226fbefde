"""What of a partial folder counts after whatever has happened to it."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.fetching.partial import Partial, hold
from orchestrator.store.fetching.ranges import Ranges
from orchestrator.store.remote import RemoteFile
from tests.support import eventually
from tests.support.fetching import partial_of
from tests.support.stored import Told

SIZE = 1000
REMOTE = RemoteFile("http://hub/a?X-Signature=secret", "toy.gguf", SIZE, "a" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = partial_of(tmp_path)
    place.mkdir(parents=True)
    return place


def begun(folder: Path, remote: RemoteFile = REMOTE, version: str | None = '"e"') -> None:
    """A fetch that brought 0 to 300 and 600 to 700, then ended."""
    work = Partial(folder, remote)
    os.pwrite(work.fd, b"x" * 700, 0)
    work.version, work.total_bytes = version, SIZE
    work.record(Ranges([(0, 300), (600, 700)]))
    work.close()


def taken_up(folder: Path, remote: RemoteFile = REMOTE) -> tuple[list[tuple[int, int]], str | None, int]:
    """What a new fetch finds: ranges, ETag, bytes on disk."""
    work = Partial(folder, remote)
    try:
        return list(work.done), work.version, os.fstat(work.fd).st_size
    finally:
        work.close()


def test_what_was_recorded_is_continued(folder: Path) -> None:
    begun(folder)
    assert taken_up(folder) == ([(0, 300), (600, 700)], '"e"', 700)


def test_no_address_is_written(folder: Path) -> None:
    begun(folder)
    texts = [path.read_bytes() for path in folder.iterdir()]
    assert not any(b"secret" in text or b"http" in text for text in texts)


def test_bytes_without_a_record_do_not_count(folder: Path) -> None:
    (folder / "data").write_bytes(b"x" * 500)
    assert taken_up(folder) == ([], None, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state | {"format": 2},
        lambda state: state | {"sha256": "b" * 64},
        lambda state: state | {"size_bytes": 999},
        lambda state: state | {"done": [[0, 800]]},
        lambda state: state | {"done": [[-1, 20]]},
        lambda state: state | {"done": [[20, 10]]},
        lambda state: state | {"done": [[0, 10, 20]]},
        lambda state: state | {"done": "all"},
        lambda state: state | {"version": 5},
        lambda state: state | {"stranger": 1},
        lambda state: [],
    ],
)
def test_a_record_that_is_not_of_this_file_starts_over(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    begun(folder)
    path = folder / "state.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert taken_up(folder) == ([], None, 0)


@pytest.mark.parametrize("length", [0, 1, 20])
def test_a_torn_record_starts_over(folder: Path, length: int) -> None:
    begun(folder)
    path = folder / "state.json"
    path.write_bytes(path.read_bytes()[:length])
    assert taken_up(folder) == ([], None, 0)


def test_a_file_that_lost_its_end_starts_over(folder: Path) -> None:
    begun(folder)
    os.truncate(folder / "data", 699)
    assert taken_up(folder) == ([], None, 0)


@pytest.mark.parametrize("version", [None, 'W/"e"', "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_without_a_strong_etag_only_a_digest_lets_a_fetch_continue(folder: Path, version: str | None) -> None:
    begun(folder, version=version)
    assert taken_up(folder)[0] != []
    nameless = replace(REMOTE, sha256=None)
    shutil.rmtree(folder)
    folder.mkdir()
    begun(folder, nameless, version=version)
    assert taken_up(folder, nameless) == ([], None, 0)


def test_what_is_there_counts_where_the_disk_counts_no_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Partial(folder, replace(REMOTE, size_bytes=1 << 20))
    os.pwrite(work.fd, b"x", (1 << 20) - 1)
    work.done.add(0, 1 << 19)

    class Disk:
        f_bavail, f_frsize = 1 << 7, 1 << 12

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    work.check_space()
    work.close()


def test_what_is_there_counts_when_space_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Partial(folder, replace(REMOTE, size_bytes=1 << 20))
    os.pwrite(work.fd, b"x" * (1 << 19), 0)
    os.fsync(work.fd)
    real = os.statvfs(folder)

    class Disk:
        f_bavail, f_frsize = (1 << 19) // real.f_frsize, real.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    work.check_space()
    work.wipe()
    with pytest.raises(
        SlipstreamError, match=rf"toy\.gguf needs {1 << 20} more bytes, the disk has {1 << 19} left"
    ) as c:
        work.check_space()
    assert c.value.code is Code.DISK_FULL
    assert c.value.details == {"needed_bytes": 1 << 20, "free_bytes": 1 << 19}
    work.close()


@pytest.mark.parametrize(
    "number, code", [(errno.ENOSPC, Code.DISK_FULL), (errno.EDQUOT, Code.DISK_FULL), (errno.EIO, Code.SOURCE_FAILED)]
)
def test_errors_of_the_disk_have_a_code(folder: Path, number: int, code: Code) -> None:
    work = Partial(folder, REMOTE)
    assert work.unwritable(OSError(number, os.strerror(number))).code is code
    work.close()


def test_wrong_bytes_are_kept_with_both_digests(folder: Path) -> None:
    begun(folder)
    work = Partial(folder, REMOTE)
    error = work.quarantine("c" * 64)
    work.close()
    assert error.code is Code.WRONG_BYTES
    assert "a" * 64 in error.message and "c" * 64 in error.message and "secret" not in error.message
    place = folder.parent.parent / "quarantine" / f"{folder.name}-{'c' * 12}"
    assert place.stat().st_size == 700 and not (folder / "data").exists() and not (folder / "state.json").exists()
    note = json.loads(place.with_name(f"{place.name}.json").read_text())
    assert (note["expected_sha256"], note["actual_sha256"]) == ("a" * 64, "c" * 64)


def test_the_second_one_waits_and_says_so(folder: Path) -> None:
    told, order = Told(), []

    def second() -> None:
        with hold(folder, told, "toy.gguf"):
            order.append("second")

    with hold(folder, Told(), "toy.gguf"):
        thread = threading.Thread(target=second)
        thread.start()
        eventually(lambda: told.phases, "the second one waits")
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert told.phases == [("waiting", None, "toy.gguf")]


def test_a_folder_that_is_removed_while_one_waits_keeps_others_out_all_the_same(folder: Path) -> None:
    told, inside, leave = Told(), threading.Event(), threading.Event()

    def second() -> None:
        with hold(folder, told, "toy.gguf"):
            inside.set()
            leave.wait(10)

    with hold(folder, Told(), "toy.gguf"):
        thread = threading.Thread(target=second)
        thread.start()
        eventually(lambda: told.phases, "the second one waits")
        shutil.rmtree(folder)
    assert inside.wait(10)
    third = Told()
    late = threading.Thread(target=lambda: hold(folder, third, "toy.gguf").__enter__(), daemon=True)
    late.start()
    eventually(lambda: third.phases, "the third one waits for the second")
    leave.set()
    thread.join(10)
    late.join(10)
    assert not late.is_alive()
