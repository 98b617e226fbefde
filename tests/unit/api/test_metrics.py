"""The page as it is served, and its document."""

import re
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests import REPOSITORY
from tests.unit.conftest import World, ensure
from tests.unit.telemetry.exposed import PATCHED

# A counter's name on the page has an ending that its family has not, and an info's.
_ENDINGS = {"counter": "_total", "info": "_info"}
BOUNDED = {
    *("model", "slot", "spec_type", "position", "drafter", "reason", "outcome", "state", "host", "device"),
    *("kind", "source", "flags", "event", "version", "llama_server"),
}


async def families_of(http: httpx.AsyncClient, accept: str = "") -> list[Metric]:
    response = await http.get("/metrics", headers={"accept": accept})
    reader = read_openmetrics if "openmetrics" in response.headers["content-type"] else text_string_to_metric_families
    return list(reader(response.text))


def documented() -> Iterator[tuple[str, str, set[str]]]:
    text = (REPOSITORY / "docs" / "metrics.md").read_text()
    for name, labels, meaning in re.findall(r"^\| `(slipstream_\w+)` \| (`.*?`) \| (.*?) \|$", text, re.M):
        yield name, meaning, set(re.findall(r"`(\w+)`", labels))


async def test_the_document_lists_exactly_our_metrics(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a", {"speculation": {"type": "draft-mtp"}}, metrics=PATCHED)
    await ensure(world, "a")
    ours = [f for f in await families_of(http, "application/openmetrics-text") if f.name.startswith("slipstream_")]
    names = {family.name + _ENDINGS.get(family.type, ""): family for family in ours}
    written = {name: (meaning, labels) for name, meaning, labels in documented()}
    assert {name: family.documentation for name, family in names.items()} == {
        name: meaning for name, (meaning, _) in written.items()
    }
    labels = {name: {label for s in family.samples for label in s.labels} - {"le"} for name, family in names.items()}
    assert [name for name, found in labels.items() if found and found != written[name][1]] == []
    assert sum(map(bool, labels.values())) > 20
    assert set().union(*labels.values()) <= BOUNDED
    # The same in the text format.
    assert {f.name.removesuffix("_info") for f in await families_of(http)} >= {family.name for family in ours}


async def test_it_is_packed_for_who_asks(http: httpx.AsyncClient) -> None:
    for asked, encoding in (("gzip, deflate", "gzip"), ("identity", None)):
        response = await http.get("/metrics", headers={"accept-encoding": asked})
        assert response.headers.get("content-encoding") == encoding
        assert "slipstream_build_info{" in response.text


async def test_a_model_file_that_is_gone_is_seen_by_a_scrape(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.model("a")
    assert 'model="a"' in (await http.get("/metrics")).text
    (world.models_dir / "a.yaml").unlink()
    monkeypatch.setattr("orchestrator.api.metrics._REFRESH_SECONDS", 0.0)
    assert 'model="a"' not in (await http.get("/metrics")).text
