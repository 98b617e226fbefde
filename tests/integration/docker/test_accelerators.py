"""Wiring of accelerators, shown with stand-ins: a stub of NVIDIA's hook, and character devices in place of AMD's.

This shows what containers are given, not that kernels run.
"""

import os
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from tests.integration.docker.conftest import Site
from tests.support.docker import stand_in_node
from tests.support.orchestrator import environment_of

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("asked, seen", [("all", "all"), (["0", "GPU-5a"], "0,GPU-5a")])
async def test_nvidia_ids_reach_the_container(second_site: Site, asked: object, seen: str) -> None:
    driver = await second_site.driver(devices={"nvidia": asked})
    server = await (await second_site.start(driver, second_site.order())).listens()
    environment = environment_of(second_site.engine.inspect(server.child.id)["State"]["Pid"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == seen
    assert (await server.complete()).status_code == 200
    await server.child.stop(5.0)


async def test_rocm_nodes_and_numeric_groups_reach_the_container(site: Site, tmp_path: Path) -> None:
    kfd, render = tmp_path / "kfd", tmp_path / "renderD128"
    for node, gid in ((kfd, 44123), (render, 44124)):
        stand_in_node(node, gid)
    rocm = {"kfd": str(kfd), "render": [str(render)], "gids": [44123, 44124]}
    server = await (await site.start(await site.driver(devices={"rocm": rocm}), site.order())).listens()
    groups = site.engine.run("exec", server.child.id, "id", "-G").split()
    assert set(groups) == {"10001", "44123", "44124"}
    # The user reads them by a group that has no name in the image; without it the kernel would refuse.
    for path in ("/dev/kfd", "/dev/dri/renderD128"):
        site.engine.run("exec", server.child.id, "bash", "-c", f"[[ -c {path} ]] && cat {path} && echo x >{path}")
    assert (await server.complete()).status_code == 200
    await server.child.stop(5.0)


async def test_a_llama_server_that_sees_none_of_them_is_no_quiet_run_on_the_processor(second_site: Site) -> None:
    driver = await second_site.driver(devices={"nvidia": "all"})
    with pytest.raises(SlipstreamError) as caught:
        await driver.devices()
    assert caught.value.code is Code.HOST_FAILED
    assert caught.value.details["reason"] == "no_accelerator"
    assert "processor" in caught.value.message and second_site.engine.owned(second_site.owner) == []


async def test_an_engine_without_nvidias_runtime_says_what_is_missing(site: Site) -> None:
    driver = await site.driver(devices={"nvidia": "all"})
    with pytest.raises(SlipstreamError) as caught:
        await driver.start(site.order())
    assert caught.value.code is Code.HOST_FAILED and "nvidia-container-toolkit" in str(caught.value.hint)
    assert site.engine.owned(site.owner) == []


async def test_a_node_that_is_not_there_is_named(site: Site) -> None:
    rocm = {"render": ["/dev/dri/renderD199"], "gids": [1]}
    with pytest.raises(SlipstreamError) as caught:
        await (await site.driver(devices={"rocm": rocm})).start(site.order())
    assert caught.value.code is Code.HOST_FAILED and "devices.rocm" in str(caught.value.hint)
    assert site.engine.owned(site.owner) == []


async def test_without_accelerators_ram_alone_is_told_and_nothing_is_started(site: Site) -> None:
    [ram] = await (await site.driver()).devices()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (ram.kind, ram.total_bytes) == ("host", memory)
