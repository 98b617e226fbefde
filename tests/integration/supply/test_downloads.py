"""Downloads in the metrics: the bytes that came, as they come, whatever is retried, resumed or there already."""

import pytest

from tests.integration.supply.conftest import WHOLE, Parts, post, pulled, put
from tests.support import eventually
from tests.support.hub import Hub, Kind
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration
TOY = {"hf": WHOLE, "file": "toy-F32.gguf"}


def downloaded(house: Orchestrator, source: str = "hf") -> float | None:
    return house.metric("slipstream_download_bytes_total", source=source)


def ended(house: Orchestrator, outcome: str) -> float | None:
    return house.metric("slipstream_jobs_ended_total", kind="pull", outcome=outcome)


def test_bytes_are_those_that_the_hub_sent(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    size = parts.toy.path.stat().st_size
    assert (downloaded(house), ended(house, "succeeded")) == (0, 0), "there before the first one"
    hub.fault(Kind.CUT, after_bytes=size // 2)
    put(house, "toy", source=TOY).raise_for_status()
    pulled(house, "toy")
    assert downloaded(house) == hub.sent_bytes == size, "cut in the middle and gone on with, each byte once"
    pulled(house, "toy")
    assert downloaded(house) == size, "what is there is not downloaded"
    put(house, "far", source={"url": hub.serve("toy.gguf", parts.files.trunk)}).raise_for_status()
    pulled(house, "far")
    assert downloaded(house, "url") == parts.files.trunk.stat().st_size
    assert (downloaded(house), downloaded(house, "pypi")) == (size, 0)
    assert ended(house, "succeeded") == 3


def test_they_count_while_they_move_and_over_a_cancel(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    size = parts.toy.path.stat().st_size
    hub.fault(Kind.STALL, after_bytes=size // 2)
    put(house, "toy", source=TOY).raise_for_status()
    job = post(house, "/api/models/toy/pull").json()["id"]
    moved = eventually(lambda: downloaded(house), "some of it has come")
    assert moved <= size // 2
    assert house.metric("slipstream_jobs", kind="pull", state="running") == 1
    house.http.delete(f"/api/jobs/{job}").raise_for_status()
    assert house.metric("slipstream_jobs", kind="pull", state="running") == 0
    pulled(house, "toy")
    # What the line still held when the child was killed is sent again, and was never had.
    assert size <= (downloaded(house) or 0) <= hub.sent_bytes
    assert (ended(house, "cancelled"), ended(house, "succeeded"), ended(house, "failed")) == (1, 1, 0)
