"""Start, stop, restart, swap and flags over HTTP, with real servers."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.integration.orchestrator.streams import Background
from tests.support import Samples, eventually
from tests.support.orchestrator import Orchestrator, is_gone, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

Json = dict[str, Any]

KEEP_ALIVE_SECONDS = 5.0


def put(house: Orchestrator, body: Json, **params: Any) -> Any:
    return house.http.put("/api/servers/toy", json=body, params=params)


def test_twenty_requests_start_one_process(house: Orchestrator) -> None:
    house.command("other", "stop")
    before = house.metric("slipstream_server_restarts_total", model="other")
    assert before is not None
    never_ran = house.view("other")["start_seconds"] is None
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: house.chat("other").status_code, range(20)))
    assert answers == [200] * 20
    assert house.metric("slipstream_server_restarts_total", model="other") == before + (0 if never_ran else 1)
    assert house.view("other")["desired"] == "stopped"


def test_a_burst_on_a_fresh_server_does_not_wait(house: Orchestrator) -> None:
    """llama-server keeps a thread with each idle connection for 5 s; a new connection must not wait for that."""
    for _ in range(3):
        house.command("other", "restart").raise_for_status()
        began = time.monotonic()
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda _: house.chat("other").status_code, range(24)))
        assert answers == [200] * 24
        assert time.monotonic() - began < KEEP_ALIVE_SECONDS


def test_start_stop_restart(house: Orchestrator) -> None:
    child = house.start_model("toy")
    assert house.command("toy", "start").json()["pid"] == child.pid
    restarted = house.command("toy", "restart").raise_for_status().json()
    assert restarted["pid"] != child.pid and is_gone(child.pid)
    stopped = house.command("toy", "stop").raise_for_status().json()
    assert (stopped["state"], stopped["pid"], stopped["argv"]) == ("stopped", None, [])
    assert is_gone(restarted["pid"])
    assert house.chat("toy").status_code == 200, "a request brings it back"


def test_ready_means_that_every_slot_has_drafted(house: Orchestrator) -> None:
    def drafted() -> list[float | None]:
        return [house.metric("slipstream_slot_draft_tokens_total", model="toy", slot=slot) for slot in ("0", "1")]

    house.start_model("toy")
    before = drafted()
    house.command("toy", "restart").raise_for_status()
    # The warm-up shows in the server's own counters, and not in ours.
    own = Samples.parse(house.child("toy").get("/metrics").text)
    assert all(own.get("slot_draft_tokens_total", slot=slot) > 0 for slot in ("0", "1"))
    assert drafted() == before


class TestPut:
    @pytest.mark.parametrize(
        "flags, named",
        [
            ({"ctx_siez": 1}, ("--ctx-siez", "--ctx-size")),
            ({"draft_max": 4}, ("--draft-max", "--spec-draft-n-max")),
            ({"--log-file": "/tmp/x"}, ("--log-file",)),
            ({"-m": "/etc/passwd"}, ("model",)),
            ({"slot_save_path": "/tmp"}, ("--slot-save-path",)),
            ({"api-key-file": "/etc/passwd"}, ("--api-key-file",)),
            ({"host": "0.0.0.0"}, ("--host",)),
            ({"parallel": "two"}, ("--parallel", "'two'")),
        ],
    )
    def test_a_refused_flag_leaves_the_running_server_alone(
        self, house: Orchestrator, flags: Json, named: tuple[str, ...]
    ) -> None:
        house.start_model("toy")
        before = house.view("toy")
        response = put(house, {"flags": flags})
        assert response.status_code == 422
        problem = response.json()
        assert problem["code"] == "invalid_flag"
        assert all(name in problem["detail"] for name in named), problem["detail"]
        assert house.view("toy") == before
        assert house.chat("toy").status_code == 200

    def test_dry_run_tells_and_touches_nothing(self, house: Orchestrator) -> None:
        house.start_model("toy")
        before = house.view("toy")
        plan = put(house, {"flags": {"ctx_size": 4096}}, dry_run="true").raise_for_status().json()
        # There is room for both: the new one is ready before the old one goes.
        assert [action["do"] for action in plan["actions"]] == ["start", "stop"]
        assert "4096" in plan["actions"][0]["argv"]
        assert str(house.home) not in json.dumps(plan)
        assert put(house, {"flags": {"nonsense": 1}}, dry_run="true").status_code == 422
        assert house.view("toy") == before

    def test_new_flags_take_effect(self, house: Orchestrator) -> None:
        old = house.start_model("toy")
        view = put(house, {"flags": {"parallel": 1, "spec_draft_n_max": 1}}).raise_for_status().json()
        assert view["pid"] != old.pid
        props = house.child("toy").get("/props").json()
        assert props["total_slots"] == 1
        assert props["speculative"]["n_max"] == 1
        put(house, {"flags": {}}).raise_for_status()
        assert house.child("toy").get("/props").json()["total_slots"] == 2

    def test_flags_that_need_more_memory_than_there_is_are_refused_with_numbers(self, house: Orchestrator) -> None:
        before = house.start_model("toy")
        response = put(house, {"flags": {"ctx_size": 2**40}})
        assert (response.status_code, response.json()["code"]) == (422, "does_not_fit")
        assert "MiB" in response.json()["detail"]
        assert house.view("toy")["pid"] == before.pid

    def test_flags_that_fail_at_load_leave_the_old_one_at_work(self, house: Orchestrator) -> None:
        before = house.start_model("toy")
        argv = house.view("toy")["argv"]
        response = put(house, {"flags": {"cache_type_k": "nonsense"}})
        assert response.status_code == 503
        problem = response.json()
        assert (problem["code"], problem["rolled_back"]) == ("server_start_failed", True)
        assert problem["reason"] == "unknown_argument"
        view = house.view("toy")
        assert (view["state"], view["argv"], view["flags"]) == ("ready", argv, {})
        assert view["pid"] == before.pid
        assert house.chat("toy").status_code == 200


class TestSwap:
    def test_one_goes_and_the_other_comes(self, house: Orchestrator) -> None:
        old = house.start_model("toy")
        view = house.http.post("/api/swap", json={"start": "other"}).raise_for_status().json()
        assert (view["model"], view["state"]) == ("other", "ready")
        assert is_gone(old.pid)
        assert house.view("toy")["state"] == "stopped"
        assert house.chat("other").status_code == 200

    def test_a_failed_swap_rolls_back(self, house: Orchestrator) -> None:
        house.http.post("/api/swap", json={"start": "toy"}).raise_for_status()
        body = {"start": "other", "flags": {"cache_type_v": "nonsense"}}
        problem = house.http.post("/api/swap", json=body).json()
        assert (problem["status"], problem["rolled_back"]) == (503, True)
        assert "nonsense" in problem["detail"]
        assert house.view("toy")["state"] == "ready"
        assert house.view("other")["flags"] == {}
        assert house.chat("toy").status_code == 200

    def test_dry_run_and_refusals_touch_nothing(self, house: Orchestrator) -> None:
        house.http.post("/api/swap", json={"start": "toy"}).raise_for_status()
        before = house.view("toy")
        dry = house.http.post("/api/swap", params={"dry_run": "true"}, json={"start": "other"}).json()
        assert [(a["do"], a["model"]) for a in dry["actions"]] == [("start", "other"), ("stop", "toy")]
        assert house.http.post("/api/swap", json={"start": "other", "flags": {"rpc": "x"}}).status_code == 422
        assert house.http.post("/api/swap", json={"start": "nobody"}).status_code == 404
        assert house.view("toy") == before


@pytest.fixture
def slow(make_orchestrator: MakeOrchestrator, tmp_path: Path) -> Any:
    """An orchestrator whose model `slow` never ends loading, and `quick` does at once."""
    made = make_orchestrator(FAKE_SERVER)
    for name, script in (("slow", {"load_gate": str(tmp_path / "never")}), ("quick", {})):
        path = tmp_path / f"{name}.gguf"
        write_script(path, script)
        made.write_model(name, path)
    with running_orchestrator(made):
        yield made


def loading(orchestrator: Orchestrator) -> int:
    """Process id of `slow` while it loads, else 0."""
    view = orchestrator.view("slow")
    return int(view["pid"] or 0) if view["state"] == "loading" else 0


def test_stop_during_a_load_leaves_no_process(slow: Orchestrator) -> None:
    starting = Background(lambda: slow.command("slow", "start"))
    pid = eventually(lambda: loading(slow), "it loads")
    assert slow.command("slow", "stop").json()["state"] == "stopped"
    assert is_gone(pid)
    assert starting.wait().status_code == 409


def test_a_second_swap_is_a_conflict(slow: Orchestrator) -> None:
    first = Background(lambda: slow.http.post("/api/swap", json={"start": "slow"}))
    eventually(lambda: loading(slow), "the first swap is under way")
    second = slow.http.post("/api/swap", json={"start": "quick"})
    assert second.status_code == 409
    assert second.headers["retry-after"]
    slow.command("slow", "stop")
    assert first.wait().status_code == 409


def test_what_should_run_comes_back_with_the_orchestrator(make_orchestrator: MakeOrchestrator) -> None:
    orchestrator = make_orchestrator()
    with running_orchestrator(orchestrator):
        orchestrator.http.put(
            "/api/servers/toy", json={"state": "running", "flags": {"parallel": 1}}
        ).raise_for_status()
        assert orchestrator.chat("other").status_code == 200
    with running_orchestrator(orchestrator):
        view = eventually(lambda: v if (v := orchestrator.view("toy"))["state"] == "ready" else None, "toy is back")
        assert (view["desired"], view["flags"]) == ("running", {"parallel": 1})
        assert orchestrator.view("other")["state"] == "stopped", "a request had started it, nobody wanted it kept"
