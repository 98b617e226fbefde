"""A file brought by several connections."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store.fetch import fetch
from orchestrator.store.http.limits import Limits
from orchestrator.store.remote import RemoteFile
from tests.support import eventually
from tests.support.fetching import NAME, QUICK, REPOSITORY, made, remote
from tests.support.hub import Hub, Kind
from tests.support.stored import Told

CONTENT = made(3_000_000)
SEVERAL = replace(QUICK, segment_bytes=256 << 10, measure_seconds=0.05, worth_seconds=0.1, connections=4)


@pytest.fixture
def toy(hub: Hub) -> RemoteFile:
    hub.add(REPOSITORY, NAME, CONTENT)
    return remote(hub)


def brought(toy: RemoteFile, partial: Path, limits: Limits = QUICK) -> None:
    """Fetch, and look at every byte."""
    assert fetch(toy, partial, Told(), limits).path.read_bytes() == CONTENT


def brought_by_several(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    """Fetch from a hub that is slow until it is asked by a second connection."""
    hub.bytes_per_second = 1_000_000

    def hurry() -> None:
        eventually(lambda: len(hub.asked("content")) > 1, "others are tried")
        hub.bytes_per_second = None

    thread = threading.Thread(target=hurry)
    thread.start()
    brought(toy, partial, SEVERAL)
    thread.join()


def test_several_connections_bring_one_file(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    brought_by_several(hub, toy, partial)
    ranges = [r.range for r in hub.asked("content")]
    assert hub.connections > 2 and ranges[0] is None and len(set(ranges)) == len(ranges)
    assert len(hub.asked("hub")) == 1, "the address is asked for once"


def test_what_several_brought_is_continued_with_its_gaps(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    brought(toy, partial)
    state = json.loads((partial / "state.json").read_text()) | {"done": [[0, 500_000], [1_000_000, 2_000_000]]}
    (partial / "state.json").write_text(json.dumps(state))
    with (partial / "data").open("r+b") as data:
        data.seek(500_000)
        data.write(bytes(500_000))
        data.truncate(2_000_000)
    hub.requests.clear()
    brought(toy, partial)
    assert [r.range for r in hub.asked("content")] == ["bytes=500000-999999", "bytes=2000000-"]


@pytest.mark.parametrize(
    "kind, fields",
    [
        (Kind.CUT, {"after_bytes": 100_000, "times": 3, "skip": 1}),
        (Kind.OTHER_START, {"after_bytes": 10, "times": 100}),
        (Kind.WHOLE, {"times": 100}),
        (Kind.OTHER_ETAG, {"times": 100}),
        (Kind.SHORT, {"after_bytes": 1000, "times": 5}),
    ],
)
def test_trouble_of_further_connections_is_not_that_of_the_first(
    hub: Hub, toy: RemoteFile, partial: Path, kind: Kind, fields: dict[str, Any]
) -> None:
    hub.fault(kind, **fields)
    brought_by_several(hub, toy, partial)


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_server_may_allow_fewer_connections(hub: Hub, toy: RemoteFile, partial: Path, status: int) -> None:
    hub.at_once, hub.at_once_status = 1, status
    brought_by_several(hub, toy, partial)
