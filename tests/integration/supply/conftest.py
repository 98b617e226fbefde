"""A hub with toys, and orchestrators that know no other hub."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import Toy, ToyBox, eventually
from tests.support.hub import Hub, running_hub
from tests.support.orchestrator import Orchestrator
from tests.toys import SplitFiles, split_mtp

WHOLE, SPLIT, HEADS = "acme/toy-GGUF", "acme/parts-GGUF", "acme/heads-GGUF"
TOKEN = "hf_secretsecretsecret"
# A toy gains nothing from two threads.
THREADS = {"threads": 1, "spec_draft_threads": 1}
JOB_SECONDS = 60.0


@dataclass(frozen=True)
class Parts:
    """The MTP toy, whole and cut."""

    toy: Toy
    files: SplitFiles


@pytest.fixture(scope="session")
def parts(toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    toy = toys.mtp()
    return Parts(toy, split_mtp(toy.path, tmp_path_factory.mktemp("parts")))


@pytest.fixture
def hub(parts: Parts) -> Iterator[Hub]:
    """`toy` has its head inside, `parts` a drafter in a sub-folder, `heads` a donor for what has none."""
    with running_hub() as hub:
        hub.add(WHOLE, "toy-F32.gguf", parts.toy.path)
        hub.add(WHOLE, "README.md", b"# A toy\n", lfs=False)
        hub.add(SPLIT, "parts-F32.gguf", parts.files.trunk)
        hub.add(SPLIT, "MTP/mtp-parts-F32.gguf", parts.files.drafter)
        hub.add(HEADS, "toy-MTP-head-F32.gguf", parts.files.donor)
        yield hub


MakeHouse = Callable[..., Orchestrator]


@pytest.fixture
def make_house(patched_server: Path, hub: Hub, tmp_path: Path) -> Iterator[MakeHouse]:
    """Makes an orchestrator that is not started yet; it ends with the test."""
    numbers = count()
    with ExitStack() as stack:

        def make(**environment: str) -> Orchestrator:
            home = tmp_path / f"house-{next(numbers)}"
            made = Orchestrator(home, patched_server, {}, {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", **environment})
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def house(make_house: MakeHouse) -> Orchestrator:
    """One that runs."""
    made = make_house()
    made.start()
    return made


def post(house: Orchestrator, path: str, body: Any = None, **params: str) -> httpx.Response:
    return house.http.post(path, json=body, params=params)


def ended(house: Orchestrator, response: httpx.Response) -> dict[str, Any]:
    """The job that a response names, when it has ended."""
    assert response.status_code == 202, response.text
    path = f"/api/jobs/{response.json()['id']}"

    def final() -> Any:
        job = house.http.get(path).raise_for_status().json()
        return job if job["state"] in ("succeeded", "failed", "cancelled") else None

    return dict(eventually(final, f"{path} ends", JOB_SECONDS))


def pulled(house: Orchestrator, name: str) -> dict[str, Any]:
    """The job of a pull that has to succeed."""
    job = ended(house, post(house, f"/api/models/{name}/pull"))
    assert job["state"] == "succeeded", f"{job['error']}\n{house.log_text()[-3000:]}"
    return job


def put(house: Orchestrator, name: str, **fields: Any) -> httpx.Response:
    """Write a model file over the API."""
    body = {"name": name, "server": THREADS | {"ctx_size": 2048, "parallel": 1}, **fields}
    return house.http.put(f"/api/models/{name}", json=body)


def drafted(house: Orchestrator, name: str) -> tuple[int, int]:
    """Tokens drafted and accepted in an answer of a model."""
    answer = house.chat(name, temperature=0, max_tokens=24)
    assert answer.status_code == 200, answer.text
    timings = answer.json()["timings"]
    return timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
