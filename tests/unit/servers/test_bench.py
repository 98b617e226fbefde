"""Measurements that are kept: over restarts, and until the server runs otherwise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.catalog import Catalog
from orchestrator.db import Database
from orchestrator.errors import Code
from orchestrator.schemas import BenchPut, BenchRound, BenchSums, Desired, ModelSpec
from orchestrator.servers import Benches, Manager, Wanted
from orchestrator.servers.launch import Launch
from orchestrator.servers.wanted import Want
from tests.unit.conftest import refused

ROUND = BenchRound(
    plain=BenchSums(answers=1, predicted_tokens=101, predicted_seconds=1.0),
    drafted=BenchSums(
        answers=1,
        predicted_tokens=101,
        predicted_seconds=0.8,
        draft_tokens=80,
        accepted_tokens=80,
        verification_steps=20,
    ),
)


def spec(**fields: Any) -> ModelSpec:
    base = {"name": "toy", "source": {"path": "toy.gguf"}, "speculation": {"type": "draft-mtp"}}
    return ModelSpec.model_validate(base | fields)


class House:
    """As much of a manager as has a part in it, over a database on disk."""

    def __init__(self, folder: Path) -> None:
        self.launch: Launch | None = None
        self.catalog = Catalog(folder, {"toy": spec()}, {"toy": "toy"}, ())
        self.folder = folder

    async def refresh(self) -> None:
        pass

    def server(self, name: str) -> Any:
        return SimpleNamespace(launch=self.launch)

    def change(self, **fields: Any) -> None:
        self.catalog = Catalog(self.folder, {"toy": spec(**fields)}, {"toy": "toy"}, ())

    def run(self, *argv: str, **fields: Any) -> str:
        self.launch = Launch(spec(**fields), Path("/toy.gguf"), None, argv)
        return self.launch.key

    def open(self, database: Database) -> Benches:
        self.wanted = Wanted(database)
        return Benches(database, cast(Manager, self), self.wanted)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_a_measurement_survives_a_restart(house: House, tmp_path: Path) -> None:
    with Database(tmp_path) as database:
        benches = house.open(database)
        assert (await benches.view("toy")).result is None
        key = house.run()
        kept = await benches.keep("toy", BenchPut(launch=key, rounds=(ROUND,)))
        [sample] = benches.samples()
    assert kept.launch == key and kept.result is not None and not kept.result.is_stale
    assert (sample.model, sample.spec_type, sample.at) == ("toy", "draft-mtp", kept.result.at)
    assert sample.speedup_ratio == 1.25 and sample.break_even_tokens == pytest.approx(4.0)
    with Database(tmp_path) as database:
        benches = house.open(database)
        assert await benches.view("toy") == kept
        assert list(benches.samples()) == [sample]
        await benches.forget("toy")
        assert (await benches.view("toy")).result is None and not list(benches.samples())
        await benches.forget("toy")
    with Database(tmp_path) as database:
        assert database.benches() == []


async def test_it_is_stale_while_the_server_runs_otherwise(house: House, tmp_path: Path) -> None:
    with Database(tmp_path) as database:
        benches = house.open(database)
        key = house.run("--ctx-size", "512")
        await benches.keep("toy", BenchPut(launch=key, rounds=(ROUND,)))
        house.run("--ctx-size", "1024")
        view = await benches.view("toy")
        assert view.result is not None and view.result.is_stale and view.launch != key
        assert not list(benches.samples())
        house.run("--ctx-size", "512")
        assert len(list(benches.samples())) == 1


async def test_it_is_stale_while_a_server_that_is_down_would_run_otherwise(house: House, tmp_path: Path) -> None:
    with Database(tmp_path) as database:
        benches = house.open(database)
        await benches.keep("toy", BenchPut(launch=house.run(), rounds=(ROUND,)))
        house.launch = None
        assert len(list(benches.samples())) == 1
        await house.wanted.keep("toy", Want(Desired.STOPPED, {"ctx-size": 1024}))
        assert not list(benches.samples())
        await house.wanted.keep("toy", Want(Desired.RUNNING, {}))
        assert len(list(benches.samples())) == 1
        house.change(speculation={"type": "draft-mtp", "n_max": 2})
        assert not list(benches.samples())
        house.change(keep={"pinned": True}, aliases=["t"], limits={"concurrent": 1}, defaults={"temperature": 0})
        assert len(list(benches.samples())) == 1, "what decides nothing about the launch"
        house.catalog = Catalog(tmp_path, {}, {}, ())
        assert not list(benches.samples()), "no model, no series"


async def test_what_was_measured_of_another_server_is_refused(house: House, tmp_path: Path) -> None:
    with Database(tmp_path) as database:
        benches = house.open(database)
        body = BenchPut(launch=house.run(), rounds=(ROUND,))
        house.run("--ctx-size", "1024")
        error = await refused(benches.keep("toy", body))
        assert error.code is Code.CONFLICT and body.launch in error.message
        house.launch = None
        assert (await refused(benches.keep("toy", body))).code is Code.SERVER_STOPPED
        key = house.run(speculation={"type": "none"})
        error = await refused(benches.keep("toy", BenchPut(launch=key, rounds=(ROUND,))))
        assert error.code is Code.CONFLICT and "none" in error.message
        assert (await refused(benches.view("other"))).code is Code.MODEL_NOT_FOUND
        assert not list(benches.samples()) and database.benches() == []
