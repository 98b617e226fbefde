"""A server in a container: flags, start, log, answers, stop."""

import asyncio

import httpx
import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.binary import read_flags
from tests.integration.docker.conftest import Site
from tests.support.docker import build_variant
from tests.support.orchestrator import environment_of

pytestmark = pytest.mark.integration


async def test_flags_are_those_of_the_very_image(site: Site, request: pytest.FixtureRequest) -> None:
    driver = await site.driver()
    table = await driver.flags(None)
    outside = await read_flags(request.getfixturevalue("patched_server"), {})
    assert table.is_patched and table.version == outside.version
    assert table.has("spec-draft-relaxed-top-n")
    assert await driver.flags("default") is table, "asked once for each image"
    assert site.engine.owned(site.owner) == []


async def test_it_loads_answers_and_stops_without_a_trace(site: Site) -> None:
    driver = await site.driver()
    server = await site.start(driver, site.order(erases=True))
    assert not server.child.listening.is_set()
    await server.listens()
    answer = await server.complete()
    assert answer.status_code == 200 and answer.json()["tokens_predicted"] == 8
    assert (await server.complete(authorization="Bearer wrong")).status_code == 401
    assert server.child.container == site.engine.owned(site.owner)[0]
    assert (await server.child.host_bytes() or 0) > 5 << 20
    async with httpx.AsyncClient(trust_env=False, headers={"authorization": server.child.authorization}) as client:
        erased = await client.post(f"{server.child.url}/slots/0?action=erase", json={})
    assert erased.status_code == 200, erased.text
    await server.child.stop(10.0)
    assert server.child.exited.is_set() and server.child.failure().exit_code == 0
    assert site.engine.owned(site.owner) == []
    await server.child.stop(10.0)


async def test_the_log_is_followed_without_folders_or_key(site: Site) -> None:
    server = await (await site.start(await site.driver(), site.order("--log-verbosity", "4"))).listens()
    text = "\n".join(server.log.tail(5000))
    assert site.model.name in text and str(site.model.parent) not in text
    key = server.child.authorization.removeprefix("Bearer ")
    assert key not in text and key not in str(site.engine.inspect(server.child.id)["Args"])
    before = server.log.count
    await server.complete()
    async with asyncio.timeout(10):
        while server.log.count == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_image_that_is_not_there_is_named_and_not_pulled(site: Site) -> None:
    driver = await site.driver()
    for work in (driver.flags("nowhere/absent:1"), driver.start(site.order(image="nowhere/absent:1"))):
        with pytest.raises(SlipstreamError) as caught:
            await work
        assert caught.value.code is Code.MISCONFIGURED
        assert "nowhere/absent:1" in caught.value.message and "docker pull" in str(caught.value.hint)


async def test_an_image_without_a_llama_server_is_told_so(site: Site) -> None:
    strange = build_variant(
        f"slipstream-strange:{site.owner}", site.image, "ENTRYPOINT []", "LABEL slipstream.llama-server=/bin/false"
    )
    try:
        with pytest.raises(SlipstreamError) as caught:
            await (await site.driver()).flags(strange)
        assert caught.value.code is Code.MISCONFIGURED and "status 1" in caught.value.message
        assert site.engine.owned(site.owner) == []
    finally:
        site.engine.run("image", "rm", strange)


async def test_a_stock_image_runs_by_its_own_entrypoint_and_its_variables_are_no_flags(site: Site) -> None:
    lines = ("LABEL slipstream.llama-server=''", "ENV LLAMA_ARG_HOST=127.0.0.1 LLAMA_ARG_ALIAS=stray LLAMA_ARG_PORT=1")
    stock = build_variant(f"slipstream-stock:{site.owner}", site.image, *lines)
    try:
        driver = await site.driver(images={"default": site.image, "stock": stock})
        server = await (await site.start(driver, site.order(image="stock"))).listens()
        assert (await server.complete()).status_code == 200
        found = site.engine.inspect(server.child.id)
        assert found["Config"]["Image"] == stock
        environment = environment_of(found["State"]["Pid"])
        assert [name for name in environment if name.startswith("LLAMA_")] == ["LLAMA_API_KEY"]
        await server.child.stop(5.0)
    finally:
        site.engine.run("image", "rm", "--force", stock)


async def test_an_engine_that_is_not_there_is_misconfigured(site: Site) -> None:
    with pytest.raises(SlipstreamError) as caught:
        await site.driver(address="unix:///run/no-such-engine.sock")
    assert caught.value.code is Code.MISCONFIGURED
    assert "'here'" in caught.value.message and "docker info" in str(caught.value.hint)


async def test_published_where_asked_and_on_that_address_alone(site: Site) -> None:
    driver = await site.driver(reach="127.0.0.1")
    server = await (await site.start(driver, site.order())).listens()
    assert server.child.url.startswith("http://127.0.0.1:")
    assert (await server.complete()).status_code == 200
    found = site.engine.inspect(server.child.id)
    [[bound]] = found["NetworkSettings"]["Ports"].values()
    assert bound["HostIp"] == "127.0.0.1"
    await server.child.stop(5.0)
