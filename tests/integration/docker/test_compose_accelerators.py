"""compose.yaml's accelerators on a real engine, shown with stand-ins: what containers get, and that they are unhealthy.

The image is the one for the CPU, so it is never ready: there is no GPU in it, nor in most machines that run this.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import eventually
from tests.support.compose import NO_COMPOSE, Stack, clean_environment
from tests.support.docker import MAIN, TestEngine, build_image, docker_answers, stand_in_node
from tests.support.orchestrator import environment_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not docker_answers("compose", "version"), reason=NO_COMPOSE),
]

UNHEALTHY_SECONDS = 60.0
# As the image has it, but quicker.
HEALTHCHECK = {"interval": "1s", "start_period": "1s", "retries": 1}
# Groups that no machine has.
KFD, RENDER = 44123, 44124
Start = Callable[..., Stack]


@pytest.fixture(scope="module")
def product(engine: TestEngine, request: pytest.FixtureRequest) -> Iterator[str]:
    server: Path = request.getfixturevalue("patched_server")
    tag = build_image("slipstream", f"slipstream:test-{os.getpid()}", server=server)
    yield tag
    engine.run("image", "rm", tag)


@pytest.fixture
def start(product: str, tmp_path: Path) -> Iterator[Start]:
    """Starts slipstream alone, with settings of .env and changes to its service."""
    with started(product, tmp_path) as start:
        yield start


@contextmanager
def started(image: str, folder: Path) -> Iterator[Start]:
    stacks: list[Stack] = []
    project = f"slipstream-gpu-test-{secrets.token_hex(4)}"

    def start(engine: TestEngine, changes: str = "", **settings: str) -> Stack:
        override = folder / "override.yaml"
        override.write_text(f"services:\n  slipstream:\n    healthcheck: {json.dumps(HEALTHCHECK)}\n{changes}")
        env = clean_environment() | settings | {"SLIPSTREAM_IMAGE": image, "SLIPSTREAM_PORT": "0"}
        env |= {"COMPOSE_FILE": f"compose.yaml:{override}", "DOCKER_HOST": engine.address}
        stacks.append(Stack(project, env))
        stacks[-1].compose("up", "--detach", "--no-build", "slipstream")
        return stacks[-1]

    try:
        yield start
    finally:
        for stack in stacks[-1:]:
            stack.compose("down", "--volumes", "--remove-orphans")


def problem_of(stack: Stack) -> dict[str, Any]:
    """Why the container is unhealthy, as `docker inspect` shows it."""

    def told() -> dict[str, Any] | None:
        health = stack.inspect("slipstream")["State"]["Health"]
        status, _, body = (health["Log"] or [{"Output": ""}])[-1]["Output"].partition(" ")
        if health["Status"] != "unhealthy" or status != "503":
            return None
        problem: dict[str, Any] = json.loads(body)
        return problem if problem["code"] == "no_accelerator" else None

    return eventually(told, "the container is unhealthy for want of its accelerator", UNHEALTHY_SECONDS)


def test_cuda_asks_for_every_gpu_and_says_that_none_is_there(second: TestEngine, product: str, start: Start) -> None:
    second.load_from(MAIN, product)
    stack = start(second, ACCELERATOR="cuda")
    problem = problem_of(stack)
    assert "CUDA is expected and not used" in problem["detail"] and "there is no /dev/nvidia" in problem["detail"]
    assert "NVIDIA container toolkit" in problem["hint"]
    environment = environment_of(stack.inspect("slipstream")["State"]["Pid"])
    assert (environment["NVIDIA_VISIBLE_DEVICES"], environment["SLIPSTREAM_ACCELERATOR"]) == ("all", "cuda")
    # It goes on all the same.
    url = stack.url("slipstream", 8080)
    answers = [
        httpx.get(f"{url}{path}", trust_env=False).status_code for path in ("/healthz", "/api/models", "/readyz")
    ]
    assert answers == [200, 200, 503]
    assert "CUDA is expected and not used" in httpx.get(f"{url}/", trust_env=False).text


def test_rocm_says_which_groups_are_missing_and_then_that_the_image_is_another(
    engine: TestEngine, start: Start, tmp_path: Path
) -> None:
    kfd, render = stand_in_node(tmp_path / "kfd", KFD), stand_in_node(tmp_path / "renderD128", RENDER)
    nodes = json.dumps([f"{kfd}:/dev/kfd", f"{render}:/dev/dri/renderD128"])
    changes = f"    devices: !override {nodes}\n"
    # A machine's nodes may be of one group: the same number twice.
    stack = start(engine, changes, ACCELERATOR="rocm", RENDER_GID="44999", VIDEO_GID="44999")
    problem = problem_of(stack)
    assert f"/dev/kfd cannot be opened: it belongs to group {KFD}" in problem["detail"]
    assert f"/dev/dri/renderD128 cannot be opened: it belongs to group {RENDER}" in problem["detail"]
    assert f"RENDER_GID={KFD} and VIDEO_GID={RENDER} in .env" in problem["hint"]
    assert set(stack.exec("slipstream", "id", "-G").split()) == {"10001", "44999"}

    stack = start(engine, changes, ACCELERATOR="rocm", RENDER_GID=str(KFD), VIDEO_GID=str(RENDER))
    assert set(stack.exec("slipstream", "id", "-G").split()) == {"10001", str(KFD), str(RENDER)}
    problem = problem_of(stack)
    assert "built without ROCm" in problem["detail"] and "slipstream:rocm-gfx906" in problem["hint"]
