"""What a client sees of the scheduler: who is refused, who waits, who is cut, and that a change cuts nobody."""

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
