"""A driver that comes after another of the same owner: what runs goes on, what has died goes, others' stay."""

import asyncio

import pytest

from orchestrator.errors import SlipstreamError
from orchestrator.servers.drivers.base import Found
from tests.integration.docker.conftest import Site, Started
from tests.support.docker import build_variant, new_owner

pytestmark = pytest.mark.integration


async def test_a_server_of_before_goes_on_with_its_key_and_its_log(site: Site) -> None:
    order = site.order()
    before = await (await site.start(await site.driver(), order)).listens()
    await before.child.let_go()
    later = await site.driver()
    [found] = await later.found()
    assert (found.model, found.launch) == ("toy", order.launch.key)
    again = site.order()
    child = await later.adopt(found, again)
    server = await Started(child, again.log, []).listens()
    assert (await server.complete()).status_code == 200
    assert child.container == before.child.container and child.pid == before.child.pid
    assert any("listening on" in line for line in again.log.tail(100))
    assert await later.found() == (), "it is this driver's own now"
    await child.stop(5.0)
    assert site.engine.owned(site.owner) == []


async def test_one_that_was_still_loading_listens_later(site: Site) -> None:
    started = await site.start(await site.driver(), site.order())
    await started.child.let_go()
    later = await site.driver()
    [found] = await later.found()
    order = site.order()
    server = await Started(await later.adopt(found, order), order.log, []).listens()
    assert (await server.complete()).status_code == 200
    await server.child.stop(5.0)


async def test_one_whose_log_no_longer_says_that_it_listens_is_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await (await site.start(await site.driver(), site.order())).listens()
    await before.child.let_go()
    monkeypatch.setattr("orchestrator.servers.drivers.docker._ADOPTED_LINES", 0)
    later = await site.driver()
    [found] = await later.found()
    order = site.order()
    child = await later.adopt(found, order)
    assert child.listening.is_set() and not any("listening on" in line for line in order.log.tail(100))
    await child.stop(5.0)


async def test_one_that_died_meanwhile_is_removed_and_others_are_left_alone(site: Site) -> None:
    first, stranger = await site.driver(), new_owner()
    other = await site.driver(owner=stranger)
    try:
        dead, alive = [await (await site.start(first, site.order())).listens() for _ in range(2)]
        theirs = await (await site.start(other, site.order())).listens()
        for server in (dead, alive):
            await server.child.let_go()
        site.engine.crash(dead.child.id)
        await asyncio.to_thread(site.engine.run, "wait", dead.child.id)
        later = await site.driver()
        found = await later.found()
        assert [f.id for f in found] == [alive.child.id]
        assert site.engine.owned(site.owner) == [alive.child.container]
        await later.remove(found[0])
        assert site.engine.owned(site.owner) == []
        assert site.engine.owned(stranger, running=True) == [theirs.child.container]
        assert (await theirs.complete()).status_code == 200
    finally:
        await asyncio.to_thread(site.engine.remove_owned, stranger)


async def test_a_probe_left_by_a_killed_orchestrator_is_removed(site: Site) -> None:
    site.engine.run(
        *("run", "--detach", "--label", f"slipstream.owner={site.owner}", "--label", "slipstream.probe=--help"),
        *("--entrypoint", "sleep", site.image, "600"),
    )
    assert len(site.engine.owned(site.owner, running=True)) == 1
    assert await (await site.driver()).found() == ()
    assert site.engine.owned(site.owner) == []


async def test_a_container_on_other_terms_or_of_an_older_image_is_not_what_is_wanted(site: Site) -> None:
    moving = build_variant(f"slipstream-moving:{site.owner}", site.image, "LABEL generation=1")
    try:
        driver = await site.driver()
        server = await (await site.start(driver, site.order(image=moving))).listens()
        await server.child.let_go()
        key = site.order(image=moving).launch.key
        assert [f.launch for f in await (await site.driver()).found()] == [key]
        assert [f.launch for f in await (await site.driver(limits={"pids": 99})).found()] == [""]
        build_variant(moving, site.image, "LABEL generation=2")
        assert [f.launch for f in await (await site.driver()).found()] == [""]
    finally:
        await asyncio.to_thread(site.engine.remove_owned, site.owner)
        site.engine.run("image", "rm", "--force", moving)


async def test_what_has_gone_cannot_be_taken_over(site: Site) -> None:
    driver = await site.driver()
    with pytest.raises(SlipstreamError, match="has gone"):
        await driver.adopt(Found("0123456789ab", "toy", ""), site.order())
    await driver.remove(Found("0123456789ab", "toy", ""))
