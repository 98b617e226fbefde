"""A swap to a model whose file is damaged: the old one answers all the while, and the reason stands in words."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.lifecycle.asking import Steady
from tests.integration.orchestrator.conftest import THREADS
from tests.support import ToyBox, eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration

Damage = Callable[[bytes], bytes]


def truncated(whole: bytes) -> bytes:
    """Half of it: the header says that more must come."""
    return whole[: len(whole) // 2]


def without_a_tensor(whole: bytes) -> bytes:
    """A tensor under a name that nobody asks for: the header is sound, and the loader misses one."""
    return whole.replace(b"blk.1.attn_q.weight", b"blk.1.attn_Q.weight")


@pytest.fixture(params=[1, 2], ids=["room for one", "room for both"])
def house(request: pytest.FixtureRequest, patched_server: Path, toys: ToyBox, tmp_path: Path) -> Iterator[Orchestrator]:
    """`good` runs; there is room for as many as the parameter says."""
    bytes_each = 100 << 20
    orchestrator = Orchestrator(tmp_path / "house", patched_server, {"MEMORY": f"host={request.param * bytes_each}"})
    flags = THREADS | {"ctx_size": 2048, "parallel": 1}
    place = {"memory": {"host": bytes_each}}
    orchestrator.write_model("good", toys.pair().path, server=flags, place=place)
    orchestrator.write_model("bad", source={"path": "bad.gguf"}, server=flags, place=place)
    with running_orchestrator(orchestrator):
        orchestrator.start_model("good")
        yield orchestrator


@pytest.mark.parametrize(
    "damage, status, reason, words",
    [
        (truncated, 422, "preflight", "cut off"),
        (without_a_tensor, 503, "bad_file", "tensor 'blk.1.attn_q.weight' not found"),
    ],
    ids=["truncated", "a tensor is missing"],
)
def test_the_old_one_answers(
    house: Orchestrator, toys: ToyBox, damage: Damage, status: int, reason: str, words: str
) -> None:
    damaged = damage(toys.pair().path.read_bytes())
    assert damaged != toys.pair().path.read_bytes()
    (house.models_dir / "bad.gguf").write_bytes(damaged)
    with Steady(house, "good") as steady:
        eventually(lambda: steady.count > 2, "it is asked")
        response = house.http.post("/api/swap", json={"start": "bad"})
        seen = steady.count
        eventually(lambda: steady.count > seen + 2, "it is asked on")
    assert steady.errors == []
    assert len({text for text in steady.answers if not text.startswith("data: ")}) >= 1
    assert response.status_code == status
    assert words in response.json()["detail"]
    failure = house.view("bad")["failure"]
    assert failure["reason"] == reason
    assert words in failure["message"]
    good = house.view("good")
    assert (good["state"], good["desired"]) == ("ready", "running")
    assert house.view("bad")["desired"] == "stopped"


def test_a_mended_file_is_served_at_once(house: Orchestrator, toys: ToyBox) -> None:
    whole = toys.pair().path.read_bytes()
    (house.models_dir / "bad.gguf").write_bytes(without_a_tensor(whole))
    assert house.http.post("/api/swap", json={"start": "bad"}).status_code == 503
    (house.models_dir / "bad.gguf").write_bytes(whole)
    view = house.http.post("/api/swap", json={"start": "bad"}).raise_for_status().json()
    assert (view["state"], view["failure"]) == ("ready", None)
    assert house.chat("bad").status_code == 200
