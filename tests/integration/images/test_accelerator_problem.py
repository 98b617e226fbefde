"""What the engine image says when the GPU that it was told to expect is not to be had.

Stand-ins for device nodes show messages and wiring, not that kernels run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.images.conftest import RunEngine
from tests.support.docker import MAIN, stand_in_node

pytestmark = pytest.mark.integration

PROGRAM, HEALTH = "/opt/slipstream/accelerator-problem", "/opt/slipstream/llama-server-health"
RENDER, OTHER = 44123, 44124
Ask = Callable[..., list[str]]


def device(node: Path, inside: str) -> tuple[str, str]:
    return "--device", f"{node}:{inside}"


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, Path]:
    """Nodes of two groups, none of which is in the image."""
    gids = {"kfd": RENDER, "renderD128": RENDER, "renderD129": OTHER, "nvidia0": OTHER, "nvidiactl": OTHER}
    return {name: stand_in_node(tmp_path / name, gid) for name, gid in gids.items()}


@pytest.fixture
def rocm(nodes: dict[str, Path]) -> tuple[str, ...]:
    """Options that pass an AMD GPU."""
    return (*device(nodes["kfd"], "/dev/kfd"), *device(nodes["renderD128"], "/dev/dri/renderD128"))


@pytest.fixture
def ask(engine_image: str) -> Ask:
    """What the program prints in a container that expects an accelerator; nothing where there is no problem."""

    def run(accelerator: str, *options: str) -> list[str]:
        argv = ("run", "--rm", "--read-only", "--cap-drop", "ALL", "--env", f"SLIPSTREAM_ACCELERATOR={accelerator}")
        script = ("--entrypoint", "bash", engine_image, "-c", f"{PROGRAM}; echo $?")
        *lines, status = MAIN.run(*argv, *options, *script).splitlines()
        assert status == str(int(bool(lines))), lines
        return lines

    return run


def test_nothing_is_expected_of_a_processor(ask: Ask) -> None:
    assert ask("cpu") == []
    [unknown] = ask("gpu")
    assert "'gpu'" in unknown and "cpu, cuda or rocm" in unknown


def test_rocm_nodes_that_are_not_passed_are_named(ask: Ask, nodes: dict[str, Path]) -> None:
    [nothing] = ask("rocm")
    assert "--device /dev/kfd --device /dev/dri" in nothing and "ACCELERATOR=rocm" in nothing
    [half] = ask("rocm", *device(nodes["kfd"], "/dev/kfd"), "--group-add", str(RENDER))
    assert half == "no /dev/dri/renderD* here, only /dev/kfd: add --device /dev/dri"
    [wsl] = ask("rocm", *device(nodes["kfd"], "/dev/dxg"))
    assert "WSL" in wsl


def test_the_missing_group_is_told_by_its_number(ask: Ask, rocm: tuple[str, ...], nodes: dict[str, Path]) -> None:
    [first] = ask("rocm", *rocm)
    assert first == (
        f"/dev/kfd and /dev/dri/renderD128 belong to group {RENDER}, of which this container's user is no member: "
        f"add --group-add {RENDER} (in compose: RENDER_GID={RENDER} in .env)"
    )
    assert ask("rocm", *rocm, "--group-add", str(RENDER)) == []
    # A second GPU of another group: ROCm starts with none when one of them is refused.
    two = (*rocm, *device(nodes["renderD129"], "/dev/dri/renderD129"))
    [second] = ask("rocm", *two, "--group-add", str(RENDER))
    assert f"/dev/dri/renderD129 belongs to group {OTHER}" in second and f"VIDEO_GID={OTHER}" in second
    assert ask("rocm", *two, "--group-add", str(RENDER), "--group-add", str(OTHER)) == []


def test_what_no_group_helps_with_is_told_apart(ask: Ask, nodes: dict[str, Path], tmp_path: Path) -> None:
    private = stand_in_node(tmp_path / "private", RENDER, mode=0o600)
    found = ask("rocm", *device(private, "/dev/kfd"), *device(private, "/dev/dri/renderD128"))
    assert len(found) == 2 and all("has mode 600" in line for line in found)
    # What a node of the host's other groups looks like in a user namespace.
    foreign = stand_in_node(tmp_path / "foreign", 65534)
    [namespace] = ask("rocm", *device(foreign, "/dev/kfd"), *device(private, "/dev/dri/renderD128"))[:1]
    assert "keep-groups" in namespace
    # Of a number that no container may open unasked, as it may /dev/null.
    bound = stand_in_node(tmp_path / "bound", RENDER, device=(240, 0))
    mounted = ("--volume", f"{bound}:/dev/kfd", *device(nodes["renderD128"], "/dev/dri/renderD128"))
    [volume] = ask("rocm", *mounted, "--group-add", str(RENDER))
    assert "pass it with --device /dev/kfd, as a volume it is not enough" in volume


@pytest.mark.parametrize(
    "variable, hidden",
    [
        *(("ROCR_VISIBLE_DEVICES=", True), ("ROCR_VISIBLE_DEVICES=0", False)),
        *(("HIP_VISIBLE_DEVICES=", False), ("HIP_VISIBLE_DEVICES=-1", True), ("CUDA_VISIBLE_DEVICES=-1", True)),
        ("HIP_VISIBLE_DEVICES=0 CUDA_VISIBLE_DEVICES=-1", False),
    ],
)
def test_rocm_variables_that_hide_every_gpu(ask: Ask, rocm: tuple[str, ...], variable: str, hidden: bool) -> None:
    given = [word for each in variable.split() for word in ("--env", each)]
    found = ask("rocm", *rocm, "--group-add", str(RENDER), *given)
    assert [line.split("=")[0].split()[0] for line in found] == [variable.split("=")[0]] * hidden


def test_cuda_nodes(ask: Ask, nodes: dict[str, Path]) -> None:
    [nothing] = ask("cuda")
    assert "--gpus all" in nothing and "nvidia.com/gpu=all" in nothing
    assert "NVIDIA_VISIBLE_DEVICES is 'none'" in ask("cuda", "--env", "NVIDIA_VISIBLE_DEVICES=none")[1]
    gpu = (*device(nodes["nvidia0"], "/dev/nvidia0"), *device(nodes["nvidiactl"], "/dev/nvidiactl"))
    [module] = ask("cuda", *gpu, "--group-add", str(OTHER))
    assert "no /dev/nvidia-uvm here" in module and "nvidia-modprobe" in module
    whole = (*gpu, *device(nodes["nvidiactl"], "/dev/nvidia-uvm"))
    [group] = ask("cuda", *whole)
    assert f"--group-add {OTHER}" in group and ".env" not in group
    assert ask("cuda", *whole, "--group-add", str(OTHER)) == []
    [hidden] = ask("cuda", *whole, "--group-add", str(OTHER), "--env", "CUDA_VISIBLE_DEVICES=")
    assert "CUDA_VISIBLE_DEVICES is ''" in hidden
    # WSL has one node for whatever there is.
    assert ask("cuda", *device(nodes["nvidia0"], "/dev/dxg"), "--group-add", str(OTHER)) == []


def test_a_server_without_its_gpu_serves_is_unhealthy_and_says_why(run_engine: RunEngine) -> None:
    running = run_engine(options=("--env", "SLIPSTREAM_ACCELERATOR=rocm"))
    assert "no /dev/kfd here" in running.becomes("unhealthy")
    assert "slipstream: no /dev/kfd here" in running.logs()
    assert running.exec("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080").returncode == 0


@pytest.mark.parametrize(
    "accelerator, inside",
    [("rocm", ("/dev/kfd", "/dev/dri/renderD128")), ("cuda", ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"))],
)
def test_a_server_is_well_when_it_has_its_gpu_open(
    run_engine: RunEngine, nodes: dict[str, Path], tmp_path: Path, accelerator: str, inside: tuple[str, ...]
) -> None:
    options: tuple[str, ...] = ("--env", f"SLIPSTREAM_ACCELERATOR={accelerator}", "--group-add", str(RENDER))
    options += tuple(word for path in inside for word in device(nodes["kfd"], path))
    without = run_engine(options=options)
    said = without.becomes("unhealthy")
    assert "has no GPU open, though one is here" in said
    as_root = MAIN.run("exec", "--user", "root", without.name, "bash", "-c", f"{HEALTH} || true")
    assert "is hidden from user 0" in as_root and "no GPU open" not in as_root
    assert ("libcuda.so.1 is not in this container" in said) == (accelerator == "cuda")

    # What it has open when it becomes the server stays open.
    holds = tmp_path / "holds"
    opens = " ".join(f"{number}<>{path}" for number, path in enumerate(inside, start=7))
    holds.write_text(f'#!/bin/bash\nexec {opens}\nexec /opt/llama-server/llama-server "$@"\n')
    holds.chmod(0o755)
    options += ("--volume", f"{holds}:/holds:ro", "--env", "SLIPSTREAM_LLAMA_SERVER=/holds")
    assert "200" in run_engine(options=options).becomes("healthy")
