from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.reader import read_header
from orchestrator.store.remote import RemoteFile
from orchestrator.store.remote_bytes import RemoteBytes
from tests.support.fetching import NAME, QUICK, REPOSITORY, made, remote
from tests.support.hub import Hub, Kind
from tests.support.toybox import ToyBox

CONTENT = made(4_000_000)


@pytest.fixture
def toy(hub: Hub) -> RemoteFile:
    hub.add(REPOSITORY, NAME, CONTENT)
    return remote(hub)


def test_reading_on_asks_for_more_each_time(hub: Hub, toy: RemoteFile) -> None:
    with RemoteBytes(toy, QUICK) as source:
        assert (source.name, source.size_bytes) == (NAME, len(CONTENT))
        for at in range(0, 2_000_000, 1000):
            assert source.read_at(at, 1000) == CONTENT[at : at + 1000]
    sizes = [int(b) - int(a) + 1 for a, b in (r.range[6:].split("-") for r in hub.asked("content") if r.range)]
    assert sizes == [256 << 10, 512 << 10, 1 << 20, 2 << 20]


def test_the_end_and_what_lies_far_away(hub: Hub, toy: RemoteFile) -> None:
    with RemoteBytes(toy, QUICK) as source:
        assert source.read_at(len(CONTENT) - 10, 10) == CONTENT[-10:]
        with pytest.raises(SlipstreamError, match=f"ends at byte {len(CONTENT)}") as caught:
            source.read_at(len(CONTENT) - 10, 11)
    assert caught.value.code is Code.INVALID_GGUF
    assert hub.asked("content")[-1].range == "bytes=3999990-3999999"


def test_a_header_is_read_where_it_is(hub: Hub, toys: ToyBox) -> None:
    path = toys.mtp().path
    hub.add(REPOSITORY, NAME, path)
    with RemoteBytes(remote(hub), QUICK) as source:
        header = read_header(source)
    assert header.architecture == "glm4moe" and header.file_bytes == path.stat().st_size


@pytest.mark.parametrize(
    "kind, fields",
    [
        (Kind.CUT, {"after_bytes": 1000, "times": 2}),
        (Kind.SHORT, {"after_bytes": 1000, "times": 2}),
        (Kind.STATUS, {"status": 503, "times": 2}),
        (Kind.STALL, {"after_bytes": 1000}),
    ],
)
def test_passing_trouble_passes(hub: Hub, toy: RemoteFile, kind: Kind, fields: dict[str, Any]) -> None:
    hub.fault(kind, **fields)
    with RemoteBytes(toy, QUICK) as source:
        assert source.read_at(0, 300_000) == CONTENT[:300_000]


def no_ranges(hub: Hub) -> None:
    hub.ranges = False


@pytest.mark.parametrize(
    "spoil, code, words",
    [
        (no_ranges, Code.SOURCE_FAILED, "the header of toy.gguf cannot be read before the file is fetched"),
        (lambda hub: hub.fault(Kind.OTHER_START, after_bytes=-5), Code.SOURCE_FAILED, "cannot be read before"),
        (lambda hub: hub.fault(Kind.PAGE), Code.SOURCE_FAILED, "web page"),
        (lambda hub: hub.fault(Kind.STATUS, status=404), Code.SOURCE_NOT_FOUND, "there is no such file"),
        (lambda hub: hub.fault(Kind.STATUS, status=503, times=9), Code.SOURCE_FAILED, "answered 503, 4 times"),
    ],
)
def test_lasting_trouble_is_told(
    hub: Hub, toy: RemoteFile, spoil: Callable[[Hub], object], code: Code, words: str
) -> None:
    spoil(hub)
    with pytest.raises(SlipstreamError) as caught:
        RemoteBytes(toy, QUICK)
    assert caught.value.code is code and words in caught.value.message


def test_a_file_that_changes_while_it_is_read_is_told(hub: Hub, toy: RemoteFile) -> None:
    with RemoteBytes(toy, QUICK) as source:
        hub.fault(Kind.OTHER_ETAG)
        with pytest.raises(SlipstreamError, match="the ETag of the file has changed"):
            source.read_at(0, 1_000_000)


def test_another_size_than_the_hub_told_is_refused(hub: Hub, toy: RemoteFile) -> None:
    with pytest.raises(SlipstreamError, match="had 5 bytes, now it has 4000000"):
        RemoteBytes(replace(toy, size_bytes=5), QUICK)


def test_no_more_is_read_than_a_header_may_have(hub: Hub, toy: RemoteFile) -> None:
    with RemoteBytes(toy, QUICK, limit_bytes=1 << 20) as source:
        source.read_at(0, 700_000)
        with pytest.raises(SlipstreamError, match="has more than 1048576 bytes"):
            source.read_at(0, 1_200_000)
