"""What a client sees of the scheduler: who is refused, who waits, who is cut, and that a change cuts nobody."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.streams import Background, open_stream
from tests.support import eventually
from tests.support.orchestrator import Orchestrator, is_gone, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

ROOM_BYTES = 1000
GATED: dict[str, Any] = {"chunks": ['data: {"n": 1}\n\n', "data: [DONE]\n\n"]}


def furnished(folder: Path, models: dict[str, dict[str, Any]], room: int = 1, **settings: str) -> Orchestrator:
    """Models of equal size by name, with room for some of them; `script` of a model goes to the fake server."""
    made = Orchestrator(folder / "home", FAKE_SERVER, {"MEMORY": f"host={room * ROOM_BYTES}", **settings})
    for name, fields in models.items():
        path = folder / f"{name}.gguf"
        write_script(path, fields.pop("script", {}))
        made.write_model(name, path, **{"place": {"memory": {"host": ROOM_BYTES}}} | fields)
    return made


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gate"
    yield path
    path.touch()


def test_who_finds_no_room_is_told_why_and_when_to_come_back(tmp_path: Path) -> None:
    with running_orchestrator(furnished(tmp_path, {"a": {"keep": {"pinned": True}}, "b": {}})) as house:
        assert house.chat("a").status_code == 200
        refused = house.chat("b")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_room")
        assert int(refused.headers["retry-after"]) > 0
        assert "'a'" in refused.json()["error"]["message"]


def test_beyond_its_bounds_a_model_takes_no_more_requests(tmp_path: Path, gate: Path) -> None:
    limits = {"concurrent": 1, "waiting": 1}
    script = GATED | {"chunk_gate": str(gate)}
    with running_orchestrator(furnished(tmp_path, {"a": {"limits": limits, "script": script}})) as house:
        with open_stream(house, model="a") as stream:
            next(stream.events())
            waiting = Background(lambda: house.chat("a"))
            eventually(lambda: house.view("a")["waiting"] == 1, "one waits")
            refused = house.chat("a")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) > 0
            gate.touch()
            assert list(stream.events())[-1] == "[DONE]"
        assert waiting.wait().status_code == 200


def test_a_drain_that_lasts_too_long_ends_the_stream_with_an_error(tmp_path: Path, gate: Path) -> None:
    house = furnished(
        tmp_path, {"a": {"script": GATED | {"chunk_gate": str(gate)}}, "b": {}}, DRAIN_TIMEOUT_SECONDS="1"
    )
    with running_orchestrator(house), open_stream(house, model="a") as stream:
        next(stream.events())
        swap = Background(lambda: house.http.post("/api/swap", json={"start": "b"}))
        events = list(stream.events())
        assert "[DONE]" not in events
        assert json.loads(events[-1])["error"]["code"] == "drained"
        assert swap.wait().status_code == 200
        assert house.chat("b").status_code == 200


def test_an_idle_server_gives_its_memory_back(tmp_path: Path) -> None:
    with running_orchestrator(furnished(tmp_path, {"a": {"keep": {"idle_seconds": 0.2}}})) as house:
        assert house.chat("a").status_code == 200
        eventually(lambda: house.view("a")["state"] == "stopped", "it has ended")
        assert house.leftovers() == []


@pytest.mark.parametrize("room", [1, 2])
def test_a_change_of_flags_loses_no_request(tmp_path: Path, room: int) -> None:
    """With room for both the old one answers until the new one is ready; without, requests wait."""
    with running_orchestrator(furnished(tmp_path, {"a": {}}, room)) as house:
        before = house.command("a", "start").json()["pid"]
        answers: list[int] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                answers.append(house.chat("a").status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        for size in (1024, 2048, 4096):
            house.http.put("/api/servers/a", json={"flags": {"ctx_size": size}}).raise_for_status()
        seen = len(answers)
        eventually(lambda: len(answers) > seen, "the new one answers")
        over.set()
        asking.join()
        assert set(answers) == {200}
        assert is_gone(before)


def test_two_models_that_cannot_be_loaded_together_both_get_their_turn(tmp_path: Path) -> None:
    with running_orchestrator(furnished(tmp_path, {"a": {}, "b": {}})) as house:

        def thirty(model: str) -> set[int]:
            return {house.chat(model).status_code for _ in range(30)}

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(thirty, "abab")) == [{200}] * 4
        told = house.http.get("/api/servers/a").json()
        assert told["waiting"] == 0
