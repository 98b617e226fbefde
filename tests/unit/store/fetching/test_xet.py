"""The real hf_xet against the tests' hub."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.store.fetch import fetch
from orchestrator.store.fetching.xet import xet_offer
from orchestrator.store.http.limits import Limits
from orchestrator.store.remote import RemoteFile
from tests.support.fetching import NAME, QUICK, REPOSITORY, made, remote
from tests.support.hub import Hub, Kind
from tests.support.stored import Told

CONTENT = made(1_000_000)
TOKEN = "hf_secretsecret"
# Ten of these are the patience with a piece.
STALLS = replace(QUICK, stall_seconds=0.05)


@pytest.fixture
def toy(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteFile:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_DISABLE_XET")
    hub.add(REPOSITORY, NAME, CONTENT)
    hub.offer_xet(REPOSITORY, NAME)
    return remote(hub)


def brought(toy: RemoteFile, partial: Path, limits: Limits = QUICK) -> Told:
    told = Told()
    assert fetch(toy, partial, told, limits).path.read_bytes() == CONTENT
    return told


def by_http(hub: Hub) -> list[str | None]:
    """Ranges that were fetched by plain HTTP."""
    return [r.range for r in hub.asked("content") if NAME in r.path]


def test_what_is_offered_comes_by_xet(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    told = brought(toy, partial)
    assert by_http(hub) == [] and hub.asked("content", path="/xorbs/")
    assert told.phases == [("fetching", len(CONTENT), NAME), ("hashing", len(CONTENT), NAME)]


def test_a_fetch_by_xet_goes_on_where_another_ended(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    brought(toy, partial)
    state = json.loads((partial / "state.json").read_text()) | {"done": [[0, 600_000]]}
    (partial / "state.json").write_text(json.dumps(state))
    with (partial / "data").open("r+b") as data:
        data.truncate(600_000)
    hub.requests.clear()
    brought(toy, partial)
    assert by_http(hub) == []
    assert hub.asked("content", path="/v2/reconstructions")[0].range == "bytes=600000-999999"


def test_the_hub_alone_sees_its_token(
    hub: Hub, toy: RemoteFile, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gate(REPOSITORY, "private", TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    brought(toy, partial)
    seen = {r.host for r in hub.requests if TOKEN in str(r.headers)}
    assert seen == {"hub"} and by_http(hub) == []


def test_what_xet_does_not_bring_http_does(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.fault(Kind.STATUS, "/xorbs/", status=404, times=100)
    told = brought(toy, partial)
    assert by_http(hub) == [None]
    assert any("going on by HTTP" in line for line in told.lines)
    assert not any("http://" in line for line in told.lines)


def test_xet_that_stands_still_is_given_up(hub: Hub, toy: RemoteFile, partial: Path) -> None:
    hub.fault(Kind.STALL, "/xorbs/", after_bytes=200_000)
    told = brought(toy, partial, STALLS)
    assert by_http(hub) == [None]
    assert any("no byte came in time" in line for line in told.lines)


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_xet_can_be_switched_off(
    hub: Hub, toy: RemoteFile, partial: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", value)
    brought(toy, partial)
    assert by_http(hub) == [None] and hub.asked("hub", "HEAD") == []


def test_nothing_is_offered_without_digest_nor_elsewhere(hub: Hub, toy: RemoteFile) -> None:
    assert xet_offer(toy, QUICK) is not None
    assert xet_offer(replace(toy, sha256=None), QUICK) is None
    assert xet_offer(replace(toy, path=""), QUICK) is None
    assert xet_offer(replace(toy, token_host="http://other:80"), QUICK) is None
    hub.add(REPOSITORY, "plain.gguf", CONTENT)
    assert xet_offer(remote(hub, path="plain.gguf"), QUICK) is None
