"""compose.yaml as compose reads it, for each accelerator; nothing is started, and no GPU is needed."""

import re
from typing import Any

import pytest

from tests.support.compose import NO_COMPOSE, config, services
from tests.support.docker import docker_answers
from tests.support.promql import prometheus_configuration

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not docker_answers("compose", "version"), reason=NO_COMPOSE),
]

STANDARD = {"slipstream", "prometheus", "grafana"}
GPU_KEYS = {"devices", "deploy", "group_add", "runtime", "gpus"}
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}


@pytest.mark.parametrize(
    "argv, settings", [((), {}), ((), {"ACCELERATOR": "cpu"}), (("--profile", "cpu"), {"VARIANT": "cuda"})]
)
def test_for_the_cpu_nothing_of_a_gpu_is_in_it(argv: tuple[str, ...], settings: dict[str, str]) -> None:
    found = services(*argv, **settings)
    assert set(found) == STANDARD
    assert {port["host_ip"] for service in found.values() for port in service["ports"]} == {"127.0.0.1"}
    assert not [name for name, service in found.items() if GPU_KEYS & service.keys()]
    slipstream = found["slipstream"]
    assert (slipstream["image"], slipstream["environment"]["SLIPSTREAM_ACCELERATOR"]) == ("slipstream:cpu", "cpu")
    assert not [name for name in slipstream["environment"] if re.match("CUDA|HIP|HSA|NVIDIA", name)]
    assert arguments(slipstream) == ("cpu", "cpu")


def test_for_cuda_all_gpus_are_asked_for() -> None:
    slipstream = services(ACCELERATOR="cuda")["slipstream"]
    [device] = slipstream["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": -1, "capabilities": ["gpu"]}
    assert not {"devices", "group_add"} & slipstream.keys()
    assert (slipstream["image"], arguments(slipstream)) == ("slipstream:cuda", ("cuda", "cuda"))
    assert slipstream["environment"]["SLIPSTREAM_ACCELERATOR"] == "cuda"
    assert HARDENED.items() <= slipstream.items()
    some = services(ACCELERATOR="cuda", CUDA_VISIBLE_DEVICES="1", VARIANT="cuda-86-real")["slipstream"]
    assert (some["image"], arguments(some)) == ("slipstream:cuda-86-real", ("cuda", "cuda-86-real"))
    assert some["environment"]["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    "gids, groups",
    [
        ({"RENDER_GID": "992", "VIDEO_GID": "44"}, [992, 44]),
        ({"RENDER_GID": "992"}, [992, 992]),
        # Where both nodes are of one group, `stat` prints it twice.
        ({"RENDER_GID": "44", "VIDEO_GID": "44"}, [44, 44]),
    ],
)
def test_for_rocm_nodes_and_numeric_groups(gids: dict[str, str], groups: list[int]) -> None:
    slipstream = services(ACCELERATOR="rocm", **gids)["slipstream"]
    assert [device["source"] for device in slipstream["devices"]] == ["/dev/kfd", "/dev/dri"]
    assert [int(group) for group in slipstream["group_add"]] == groups
    assert (slipstream["image"], arguments(slipstream)) == ("slipstream:rocm-gfx906", ("rocm", "rocm-gfx906"))
    assert slipstream["environment"]["SLIPSTREAM_ACCELERATOR"] == "rocm"
    assert "deploy" not in slipstream and HARDENED.items() <= slipstream.items()


def test_rocm_alone_needs_its_groups_and_says_where_they_are_from() -> None:
    done = config(ACCELERATOR="rocm")
    assert done.returncode != 0
    assert "RENDER_GID" in done.stderr and "stat -c %g /dev/kfd /dev/dri/renderD128" in done.stderr


def test_an_unknown_accelerator_is_refused_by_name() -> None:
    done = config(ACCELERATOR="abacus")
    assert done.returncode != 0
    assert 'service "abacus" not found in' in done.stderr


@pytest.mark.parametrize(
    "accelerator, names",
    [
        ("cpu", ("CPU_BASE",)),
        ("cuda", ("CUDA_BUILD_BASE", "CUDA_BASE")),
        ("rocm", ("ROCM_BUILD_BASE", "ROCM_BASE")),
    ],
)
def test_bases_are_passed_on_when_they_are_set_and_left_to_the_dockerfile_else(
    accelerator: str, names: tuple[str, ...]
) -> None:
    def given(**bases: str) -> dict[str, str]:
        found = services(ACCELERATOR=accelerator, RENDER_GID="1", **bases)["slipstream"]["build"]["args"]
        return {name: value for name, value in found.items() if name.endswith("_BASE")}

    assert given() == {}
    assert given(**dict.fromkeys(names, "a:b"), OTHER_BASE="c:d") == dict.fromkeys(names, "a:b")


def test_optional_limits() -> None:
    files = "compose.yaml:docker/compose.memlock.yaml"
    settings = {"SLIPSTREAM_CPUSET": "0-3", "SLIPSTREAM_SHM_SIZE": "1g", "SLIPSTREAM_MEMORY_LIMIT": "2g"}
    found = services(COMPOSE_FILE=files, **settings)["slipstream"]
    assert (found["ulimits"], found["cpuset"]) == ({"memlock": -1}, "0-3")
    assert (int(found["shm_size"]), int(found["mem_limit"])) == (1 << 30, 2 << 30)
    default = services()["slipstream"]
    assert not {"ulimits", "cpuset", "mem_limit"} & default.keys() and int(default["shm_size"]) == 64 << 20


def test_exporters_are_pinned_published_nowhere_and_without_privileges() -> None:
    found = services(COMPOSE_PROFILES="machine,nvidia,rocm")
    exporters = {name: found[name] for name in found.keys() - STANDARD}
    jobs = prometheus_configuration("prometheus.yml")["scrape_configs"]
    assert exporters.keys() == {
        name for job in jobs for found in job.get("dns_sd_configs", ()) for name in found["names"]
    }
    for name, service in exporters.items():
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), f"{name} has no pinned image"
        assert not {"ports", "privileged", "cap_add", "network_mode", "pid"} & service.keys(), name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(volume["read_only"] for volume in service.get("volumes", ())), name


def arguments(service: dict[str, Any]) -> tuple[str, str]:
    """Accelerator and variant that its image is built for."""
    given = service["build"]["args"]
    return given["ACCELERATOR"], given["VARIANT"]
