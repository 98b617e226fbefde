"""The fetcher against the tests' hub: what it does that no other client's behaviour is a measure for."""

import errno
import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.fetch import Fetched, fetch
from orchestrator.store.http.limits import Limits
from orchestrator.store.remote import RemoteFile
from tests.support import eventually
from tests.support.fetching import NAME, QUICK, REPOSITORY, made, remote
from tests.support.hub import Hub, Kind
from tests.support.stored import Told

CONTENT = made(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GIVES_UP = replace(QUICK, retries=0)


@pytest.fixture
def toy(hub: Hub) -> RemoteFile:
    hub.add(REPOSITORY, NAME, CONTENT)
    return remote(hub)


def brought(toy: RemoteFile, partial: Path, limits: Limits = QUICK) -> Told:
    """Fetch, and look at every byte."""
    told = Told()
    found = fetch(toy, partial, told, limits)
    content = found.path.read_bytes()
    assert found == Fetched(partial / "data", hashlib.sha256(content).hexdigest(), len(content))
    assert content == CONTENT
    return told


def failure(toy: RemoteFile, partial: Path, limits: Limits = GIVES_UP) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        fetch(toy, partial, Told(), limits)
    return caught.value


def interrupted(hub: Hub, toy: RemoteFile, partial: Path, after_bytes: int = 1_000_000) -> None:
    """A fetch that ended early."""
    hub.fault(Kind.CUT, after_bytes=after_bytes)
    assert failure(toy, partial).code is Code.SOURCE_FAILED
    hub.requests.clear()


def done(partial: Path) -> list[list[int]]:
    found: list[list[int]] = json.loads((partial / "state.json").read_text())["done"]
    return found


def test_a_file_is_brought_and_progress_is_told(toy: RemoteFile, partial: Path) -> None:
    told = brought(toy, partial)
    assert told.phases == [("fetching", len(CONTENT), NAME), ("hashing", len(CONTENT), NAME)]
    assert len(CONTENT) in told.done
    assert told.downloaded_bytes == {"hf": len(CONTENT)}


def test_an_empty_file_is_a_file(hub: Hub, partial: Path) -> None:
    hub.add(REPOSITORY, NAME, b"")
    for toy in (remote(hub), replace(remote(hub), size_bytes=None, sha256=None)):
        assert fetch(toy, partial, Told(), QUICK).size_bytes == 0


def test_a_fetch_goes_on_where_another_ended(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    interrupted(hub, toy, partial)
    assert done(partial) == [[0, 1_000_000]]
    told = brought(toy, partial)
    assert told.before[0] == 1_000_000, "what was there counts for no rate"
    assert told.downloaded_bytes == {"hf": len(CONTENT) - 1_000_000}, "nor for a download"
    [asked] = hub.asked("content")
    assert asked.range == "bytes=1000000-" and asked.headers["if-range"].startswith('"')


def test_what_is_whole_needs_no_network(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    brought(toy, partial)
    hub.requests.clear()
    assert not +brought(toy, partial).downloaded_bytes
    assert hub.requests == []


def test_bytes_of_an_earlier_run_are_not_trusted(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    interrupted(hub, toy, partial)
    with (partial / "data").open("r+b") as data:
        data.seek(5000)
        data.write(b"power was cut here")
    assert brought(toy, partial).downloaded_bytes == {"hf": 2 * len(CONTENT) - 1_000_000}
    assert [r.range for r in hub.asked("content")] == ["bytes=1000000-", None]


def test_a_file_that_changed_meanwhile_is_brought_from_its_start(hub: Hub, partial: Path) -> None:
    address = hub.serve(NAME, made(len(CONTENT), seed=2))
    toy = RemoteFile(address, NAME)
    interrupted(hub, toy, partial)
    hub.serve(NAME, CONTENT)
    assert brought(toy, partial).downloaded_bytes == {"url": len(CONTENT)}
    assert [r.range for r in hub.asked()] == ["bytes=1000000-", None]


def test_a_weak_etag_that_changed_between_two_parts_is_noticed(hub: Hub, partial: Path) -> None:
    hub.weak_etags = True
    toy = RemoteFile(hub.serve(NAME, made(len(CONTENT), seed=2)), NAME)
    hub.fault(Kind.CUT, after_bytes=1_000_000)
    hub.fault(Kind.CUT, after_bytes=0, then=lambda: hub.serve(NAME, CONTENT))
    brought(toy, partial)
    assert [r.range for r in hub.asked()] == [None, "bytes=1000000-", "bytes=1000000-", None]


def test_a_weak_etag_lets_a_fetch_go_on_after_a_cut(hub: Hub, partial: Path) -> None:
    hub.weak_etags = True
    toy = RemoteFile(hub.serve(NAME, CONTENT), NAME)
    hub.fault(Kind.CUT, after_bytes=1_000_000)
    brought(toy, partial)
    assert [r.range for r in hub.asked()] == [None, "bytes=1000000-"]


def test_without_ranges_a_cut_means_from_the_start(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.ranges = False
    hub.fault(Kind.CUT, after_bytes=1_000_000)
    brought(toy, partial)
    assert [r.range for r in hub.asked("content")] == [None, "bytes=1000000-", None]


def test_a_server_that_never_gets_further_is_given_up(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.ranges = False
    hub.fault(Kind.CUT, after_bytes=1_000_000, times=50)
    assert "in a row; gave up" in failure(toy, partial, QUICK).message


def test_each_byte_that_is_new_renews_patience(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.fault(Kind.CUT, after_bytes=200_000, times=14)
    brought(toy, partial)
    assert len(hub.asked("content")) == 15


def test_an_address_that_has_run_out_is_asked_for_again(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    interrupted(hub, toy, partial)
    hub.fault(Kind.STATUS, status=403)
    brought(toy, partial)
    assert [r.host for r in hub.requests] == ["hub", "content", "hub", "content"]


def test_a_file_without_size_and_digest(hub: Hub, partial: Path) -> None:
    toy = RemoteFile(hub.serve(NAME, CONTENT), NAME)
    hub.fault(Kind.NO_LENGTH)
    told = brought(toy, partial)
    assert told.phases == [
        ("fetching", None, NAME), ("fetching", len(CONTENT), NAME), ("hashing", len(CONTENT), NAME)
    ] or told.phases == [("fetching", None, NAME), ("hashing", len(CONTENT), NAME)]  # fmt: skip


def test_a_size_that_was_not_told_at_first_is_learned_on_the_way(hub: Hub, partial: Path) -> None:
    toy = RemoteFile(hub.serve(NAME, CONTENT), NAME)
    hub.fault(Kind.NO_LENGTH, after_bytes=1_000_000)
    brought(toy, partial)
    assert [r.range for r in hub.asked()] == [None, "bytes=1000000-"]


def test_a_file_that_changes_before_its_first_byte_is_the_new_one(hub: Hub, partial: Path) -> None:
    toy = RemoteFile(hub.serve(NAME, made(2_000_000, seed=2)), NAME)
    hub.fault(Kind.CUT, after_bytes=0, then=lambda: hub.serve(NAME, CONTENT))
    brought(toy, partial)


def test_more_bytes_than_expected_are_no_success(hub: Hub, partial: Path) -> None:
    toy = RemoteFile(hub.serve(NAME, CONTENT + b"more"), NAME, size_bytes=len(CONTENT))
    hub.fault(Kind.NO_LENGTH)
    assert "sends more than the 3000000 bytes expected" in failure(toy, partial).message
    assert f"offers {len(CONTENT) + 4} bytes, expected {len(CONTENT)}" in failure(toy, partial, QUICK).message


def test_a_page_that_calls_itself_a_file_is_told_without_a_digest(hub: Hub, partial: Path) -> None:
    address = hub.serve(NAME, b"\n <!DOCTYPE HTML><html>sign in</html>")
    error = failure(RemoteFile(address, NAME), partial)
    assert error.code is Code.SOURCE_FAILED and "web page" in error.message
    assert (partial / "data").stat().st_size == 0


def test_a_pointer_to_the_file_is_not_the_file(hub: Hub, partial: Path) -> None:
    address = hub.serve(f"raw/{NAME}", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    error = failure(RemoteFile(address, NAME), partial)
    assert "answered with a Git LFS pointer in place of the file" in error.message
    assert "/resolve/ in place of /raw/" in (error.hint or "") and (partial / "data").stat().st_size == 0


def test_a_page_in_between_leaves_what_is_there(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    interrupted(hub, toy, partial)
    hub.fault(Kind.PAGE)
    assert "web page" in failure(toy, partial).message
    assert done(partial) == [[0, 1_000_000]]
    brought(toy, partial)


def test_wrong_bytes_name_both_digests_and_lie_in_quarantine(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.fault(Kind.WRONG_BYTES)
    error = failure(toy, partial)
    actual = error.details["actual_sha256"]
    assert error.code is Code.WRONG_BYTES and SHA256 in error.message and actual in error.message != SHA256
    kept = partial.parent.parent / "quarantine" / f"{partial.name}-{actual[:12]}"
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == actual
    brought(toy, partial)


def test_a_disk_without_room_is_told_before_a_byte_is_asked_for(
    hub: Hub, toy: RemoteFile, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    error = failure(toy, partial)
    assert (error.code, error.details) == (Code.DISK_FULL, {"needed_bytes": len(CONTENT), "free_bytes": 40960})
    assert hub.requests == []


def test_a_disk_that_fills_up_keeps_what_is_there(
    hub: Hub, toy: RemoteFile, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if offset + len(data) > 2_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    error = failure(toy, partial, QUICK)
    assert error.code is Code.DISK_FULL and error.details["needed_bytes"] == len(CONTENT) - done(partial)[0][1]
    assert done(partial)[0][1] >= 1_000_000
    monkeypatch.undo()
    brought(toy, partial)


def test_the_second_of_two_finds_the_work_done(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.bytes_per_second = 20_000_000
    first, second, found = Told(), Told(), []
    threads = [
        threading.Thread(target=lambda t=t: found.append(fetch(toy, partial, t, QUICK))) for t in (first, second)
    ]
    threads[0].start()
    eventually(lambda: hub.asked("content"), "the first one fetches")
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert found == [Fetched(partial / "data", SHA256, len(CONTENT))] * 2
    assert second.phases[0] == ("waiting", None, NAME)
    assert len(hub.asked("content")) == 1


def test_neither_token_nor_signature_is_written_or_said(
    hub: Hub, toy: RemoteFile, partial: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    token = "hf_secretsecret"
    monkeypatch.setenv("HF_TOKEN", token)
    hub.gate(REPOSITORY, "private", token)
    told = Told()
    hub.fault(Kind.CUT, after_bytes=1_000_000, times=2)
    hub.fault(Kind.STATUS, status=403, times=3)
    with pytest.raises(SlipstreamError) as caught:
        fetch(toy, partial, told, replace(QUICK, retries=2))
    kept = [path.read_bytes() for path in partial.parent.parent.rglob("*") if path.name != "data" and path.is_file()]
    said = f"{caught.value.problem()} {told.lines} {caplog.text} {kept}"
    assert told.lines and kept and hub.signature not in said and token not in said
    assert {r.host for r in hub.requests if "authorization" in r.headers} == {"hub"}
