"""Slots: an allow-list of what llama-server says of them."""

import json
from typing import Any

import httpx
import pytest

from tests.unit.conftest import World

pytestmark = pytest.mark.integration

# As tools/server/server-task.cpp and server-context.cpp of the pinned llama.cpp write them, shortened.
IDLE = {"id": 0, "n_ctx": 4096, "speculative": True, "is_processing": False}
BUSY = IDLE | {
    "id": 1,
    "is_processing": True,
    "id_task": 42,
    "n_prompt_tokens": 128,
    "n_prompt_tokens_processed": 28,
    "n_prompt_tokens_cache": 100,
    "params": {"seed": 1, "grammar": "the secret", "chat_format": "x"},
    "prompt": "the secret",
    "generated": "the secret",
    "next_token": [
        {"has_next_token": True, "has_new_line": False, "n_remain": 111, "n_decoded": 17, "text": "the secret"}
    ],
    "something_new": "the secret",
}
SHOWN: dict[str, Any] = {
    **{"id": 1, "n_ctx": 4096, "is_processing": True, "speculative": True, "id_task": 42},
    **{"n_prompt_tokens": 128, "n_prompt_tokens_processed": 28, "n_prompt_tokens_cache": 100},
    "next_token": [{"n_decoded": 17, "n_remain": 111}],
}
UNKNOWN = {"id_task": None, "n_prompt_tokens": None, "n_prompt_tokens_processed": None, "n_prompt_tokens_cache": None}


async def test_what_was_sent_is_not_shown(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a", {"aliases": ["short"]}, slots=2, slots_page=json.dumps([IDLE, BUSY]))
    await world.manager.start("a")
    for name in ("a", "short"):
        named = await http.get(f"/api/servers/{name}/slots")
        bare = await http.get(f"/slots?model={name}")
        assert "secret" not in named.text + bare.text
        assert bare.json() == [IDLE | UNKNOWN | {"next_token": []}, SHOWN]
        assert named.json() == {"model": "a", "slots": bare.json()}


@pytest.mark.parametrize("path", ["/api/servers/{}/slots", "/slots?model={}"])
async def test_a_server_that_is_down_is_not_started_for_it(http: httpx.AsyncClient, world: World, path: str) -> None:
    await world.model("a", slots_page="[]")
    down = await http.get(path.format("a"))
    assert (down.status_code, down.json()["code"]) == (503, "server_stopped")
    assert (await http.get(path.format("nobody"))).status_code == 404
    assert world.starts("a") == []
    await world.manager.start("a")
    assert (await http.get(path.format("a"))).status_code == 200


async def test_whose_slots_must_be_said(http: httpx.AsyncClient) -> None:
    assert (await http.get("/slots")).status_code == 400


@pytest.mark.parametrize("page", ["{}", "null", "[1]", '[{"id": "the secret"}]', "the secret", '[{"id": 0}]'])
async def test_a_page_of_another_shape_is_not_passed_on(http: httpx.AsyncClient, world: World, page: str) -> None:
    await world.model("a", slots_page=page)
    await world.manager.start("a")
    response = await http.get("/slots?model=a")
    assert (response.status_code, response.json()["code"]) == (502, "upstream_failed")
    assert "secret" not in response.text


async def test_a_server_without_the_route(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a")
    await world.manager.start("a")
    response = await http.get("/slots?model=a")
    assert response.status_code == 502
    assert "404" in response.json()["detail"] and "no-slots" in response.json()["hint"]


async def test_a_server_that_hangs(http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.api.slots._TIMEOUT_SECONDS", 0.2)
    hang = world.gate("hang")
    await world.model("a", slots_page="[]", slots_hang=str(hang))
    await world.manager.start("a")
    hang.touch()
    response = await http.get("/slots?model=a")
    assert (response.status_code, response.json()["code"]) == (504, "upstream_timeout")
    hang.unlink()
