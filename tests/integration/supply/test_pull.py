"""Pulls: brought once, proven, resumed after a kill, refused in words; starts need what they bring and no more."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.supply.conftest import (
    HEADS,
    SPLIT,
    TOKEN,
    WHOLE,
    MakeHouse,
    Parts,
    drafted,
    ended,
    post,
    pulled,
    put,
)
from tests.support import eventually
from tests.support.hub import Hub, Kind
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration
TOY = {"hf": WHOLE, "file": "toy-F32.gguf"}
MTP = {"type": "draft-mtp", "n_max": 3}


def names_in(house: Orchestrator, folder: str) -> list[str]:
    root = house.home / "cache" / "models"
    return sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*") if path.is_file())


def test_an_incomplete_model_is_refused_with_what_is_missing(house: Orchestrator) -> None:
    put(house, "toy", source=TOY).raise_for_status()
    started = post(house, "/api/servers/toy/start")
    assert (started.status_code, started.json()["code"]) == (409, "model_incomplete")
    assert started.json()["missing"] == ["toy-F32.gguf"]
    asked = house.chat("toy")
    assert (asked.status_code, asked.json()["error"]["code"]) == (409, "model_incomplete")
    assert "slipstream pull toy" in asked.json()["error"]["message"]
    assert house.view("toy")["state"] == "stopped"


def test_what_was_pulled_serves_without_the_hub(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    put(house, "toy", source=TOY, speculation=MTP).raise_for_status()
    [file] = pulled(house, "toy")["result"]["files"]
    assert (file["name"], file["sha256"]) == ("toy-F32.gguf", hub.file(WHOLE, "toy-F32.gguf").sha256)
    commit = hub.repositories[WHOLE].resolve("main")
    assert names_in(house, "hf") == [f"hf/{WHOLE}/{commit}/toy-F32.gguf"]
    hub.close()
    house.send(signal.SIGTERM)
    house.wait()
    house.start()
    assert pulled(house, "toy")["result"]["files"] == [file], "what is there needs no network"
    house.command("toy", "start").raise_for_status()
    draft, accepted = drafted(house, "toy")
    assert draft > 0 and accepted > 0


def test_a_file_in_a_sub_folder_keeps_its_path(house: Orchestrator, hub: Hub) -> None:
    drafter = {"hf": SPLIT, "file": "MTP/mtp-parts-F32.gguf"}
    put(house, "parts", source={"hf": SPLIT, "file": "parts-F32.gguf"}, drafter=drafter, speculation=MTP)
    pulled(house, "parts")
    commit = hub.repositories[SPLIT].resolve("main")
    assert f"hf/{SPLIT}/{commit}/MTP/mtp-parts-F32.gguf" in names_in(house, "hf")
    assert drafted(house, "parts")[0] > 0


def test_two_pulls_10_ms_apart_are_one_transfer(house: Orchestrator, hub: Hub) -> None:
    hub.bytes_per_second = 8e6
    put(house, "one", source=TOY).raise_for_status()
    put(house, "two", source=TOY, speculation=MTP).raise_for_status()
    first = post(house, "/api/models/one/pull")
    time.sleep(0.01)
    second = post(house, "/api/models/one/pull")
    assert first.json()["id"] == second.json()["id"], "the same work is one job"
    # Another model that needs the same file has a job of its own, which waits for the bytes.
    third = post(house, "/api/models/two/pull")
    assert third.json()["id"] != first.json()["id"]
    for response in (first, third):
        assert ended(house, response)["state"] == "succeeded"
    assert len(hub.asked("content")) == 1


def test_a_kill_in_mid_transfer_is_continued_after_the_restart(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    size = parts.toy.path.stat().st_size
    stall = hub.fault(Kind.STALL, "", after_bytes=size // 2, times=1)
    put(house, "toy", source=TOY).raise_for_status()
    job = post(house, "/api/models/toy/pull").json()["id"]

    def half_way() -> bool:
        progress = house.http.get(f"/api/jobs/{job}").json()["progress"]
        return bool(progress) and progress["done_bytes"] >= size // 4 and stall.times == 0

    eventually(half_way, "half of it is there")
    partial = house.home / "cache" / "models" / "partial"
    eventually(lambda: list(partial.glob("*/state.json")), "what came is on record")
    house.send(signal.SIGKILL)
    house.wait()
    eventually(lambda: house.leftovers() == [], "no child is left", 5.0)
    assert names_in(house, "hf") == []
    house.start()
    again = ended(house, _accepted(house, job))
    assert (again["state"], again["runs"]) == ("succeeded", 2)
    resumed = [r.range for r in hub.asked("content") if r.range and not r.range.startswith("bytes=0-")]
    assert resumed, "the second run asked for the rest only"
    assert list(partial.glob("*")) == []


def _accepted(house: Orchestrator, job: str) -> Any:
    """A pull that is joined: the job goes on after the restart by itself."""
    response = post(house, "/api/models/toy/pull")
    assert response.json()["id"] == job
    return response


def test_a_cancelled_pull_ends_within_a_second_and_keeps_what_came(house: Orchestrator, hub: Hub) -> None:
    hub.fault(Kind.STALL, after_bytes=100_000, times=1)
    put(house, "toy", source=TOY).raise_for_status()
    job = post(house, "/api/models/toy/pull").json()["id"]
    eventually(lambda: hub.asked("content"), "it fetches")
    began = time.monotonic()
    cancelled = house.http.delete(f"/api/jobs/{job}").json()
    assert cancelled["state"] == "cancelled" and time.monotonic() - began < 1.0
    assert house.leftovers() == []
    pulled(house, "toy")


def test_wrong_bytes_are_put_aside_and_never_served(house: Orchestrator, hub: Hub) -> None:
    hub.fault(Kind.WRONG_BYTES, times=9)
    put(house, "toy", source=TOY).raise_for_status()
    job = ended(house, post(house, "/api/models/toy/pull"))
    assert (job["state"], job["error"]["code"]) == ("failed", "wrong_bytes"), job
    assert hub.file(WHOLE, "toy-F32.gguf").sha256 in job["error"]["message"]
    assert names_in(house, "hf") == [] and names_in(house, "blobs") == []
    assert names_in(house, "quarantine")
    assert post(house, "/api/servers/toy/start").json()["code"] == "model_incomplete"


@pytest.mark.parametrize("source", [TOY | {"file": "toy-F16.gguf"}, TOY | {"revision": "v9"}])
def test_what_is_not_there_is_told_apart(house: Orchestrator, source: dict[str, Any]) -> None:
    put(house, "toy", source=source).raise_for_status()
    job = ended(house, post(house, "/api/models/toy/pull"))
    assert (job["state"], job["error"]["code"]) == ("failed", "source_not_found"), job
    wrong = next(v for k, v in source.items() if TOY.get(k) != v)
    assert wrong in job["error"]["message"]


def test_a_token_reaches_the_hub_alone_and_is_nowhere_to_be_read(make_house: MakeHouse, hub: Hub) -> None:
    hub.gate(WHOLE, "gated", TOKEN)
    stranger = make_house()
    stranger.start()
    put(stranger, "toy", source=TOY).raise_for_status()
    refused = ended(stranger, post(stranger, "/api/models/toy/pull"))
    assert refused["error"]["code"] == "source_gated" and "HF_TOKEN" in refused["error"]["hint"]
    stranger.close()
    house = make_house(HF_TOKEN=TOKEN)
    house.start()
    put(house, "toy", source=TOY).raise_for_status()
    job = pulled(house, "toy")
    assert {r.host for r in hub.requests if TOKEN in str(r.headers)} == {"hub"}
    events = house.http.get(f"/api/jobs/{job['id']}/events").text
    written = [p.read_bytes() for p in house.home.rglob("*") if p.is_file() and not p.name.endswith(".gguf")]
    assert TOKEN not in events + house.log_text() + str(job)
    assert not any(TOKEN.encode() in text for text in written)


def test_a_branch_that_moves_is_followed_when_asked(
    house: Orchestrator, hub: Hub, parts: Parts, tmp_path: Path
) -> None:
    put(house, "toy", source=TOY).raise_for_status()
    before = pulled(house, "toy")["result"]["files"]
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(parts.toy.path.read_bytes() + b"more")
    hub.add(WHOLE, "toy-F32.gguf", changed)
    assert pulled(house, "toy")["result"]["files"] == before, "a branch is looked up once"
    updated = ended(house, post(house, "/api/models/toy/pull", update="true"))
    assert updated["result"]["files"][0]["sha256"] == hub.file(WHOLE, "toy-F32.gguf").sha256


def test_a_graft_is_made_once_and_serves(house: Orchestrator, hub: Hub) -> None:
    graft = {"donor": {"hf": HEADS, "file": "toy-MTP-head-F32.gguf"}}
    put(house, "grafted", source={"hf": SPLIT, "file": "parts-F32.gguf"}, graft=graft, speculation=MTP)
    files = pulled(house, "grafted")["result"]["files"]
    assert [file["name"] for file in files] == ["parts-F32.gguf", "parts-F32-MTP.gguf"]
    grafted = next((house.home / "cache" / "models" / "grafts").glob("*/*.gguf"))
    made = grafted.stat().st_mtime_ns
    pulled(house, "grafted")
    assert grafted.stat().st_mtime_ns == made, "made once"
    draft, accepted = drafted(house, "grafted")
    assert draft > 0 and accepted > draft // 2
    removed = post(house, "/api/store/gc").json()
    assert removed["removed"] == [], "base and donor of a graft in use are kept"
    house.command("grafted", "stop").raise_for_status()
    assert house.http.delete("/api/models/grafted").status_code == 204
    plan = post(house, "/api/store/gc", dry_run="true").json()
    assert len(plan["removed"]) == 3 and grafted.exists()
    assert post(house, "/api/store/gc").json()["freed_bytes"] == plan["freed_bytes"]
    assert names_in(house, "blobs") + names_in(house, "grafts") + names_in(house, "hf") == []


def test_a_running_server_keeps_its_files(house: Orchestrator) -> None:
    put(house, "toy", source=TOY).raise_for_status()
    pulled(house, "toy")
    house.command("toy", "start").raise_for_status()
    assert house.http.delete("/api/models/toy").status_code == 409
    (house.models_dir / "toy.yaml").unlink()
    assert post(house, "/api/store/gc").json()["removed"] == []
    [file] = house.http.get("/api/store").json()["files"]
    assert file["references"] == ["server toy"]


def test_paths_of_a_request_stay_inside(house: Orchestrator, parts: Parts) -> None:
    for path in ("/etc/passwd", "../../etc/passwd", "~/x.gguf", "~root/x.gguf", str(parts.toy.path)):
        source = {"path": path}
        refused = [
            put(house, "outside", source=source),
            post(house, "/api/gguf/inspect", {"source": source}),
            post(house, "/api/grafts/plan", {"base": source, "donor": source}),
            post(house, "/api/grafts", {"base": source, "donor": TOY}),
        ]
        assert [r.status_code for r in refused] == [403] * 4, [r.text for r in refused]
    assert not (house.models_dir / "outside.yaml").exists()
    inside = {"source": {"path": house.link(parts.toy.path)}}
    assert post(house, "/api/gguf/inspect", inside).json()["head"]["blocks"] == [2]


def test_jobs_of_threads_at_once_are_one(house: Orchestrator, hub: Hub) -> None:
    put(house, "toy", source=TOY).raise_for_status()
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.append(post(house, "/api/models/toy/pull").json()["id"])) for _ in range(8)
    ]
    hub.bytes_per_second = 8e6
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1
    assert len(hub.asked("content")) <= 1
