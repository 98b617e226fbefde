"""Looks at servers: shared, never late, and exact over the end of a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from orchestrator.servers.scheduling import Phase
from orchestrator.servers.scrape import Scraper
from orchestrator.telemetry.ledger import Account
from tests.unit.conftest import until
from tests.unit.servers.metrics_servers import Told, answering, child_at, instance_at, launch_of, server_of

LAUNCH = launch_of("m")
MTP = Account("m", "draft-mtp")
DRAFTED = 'llamacpp:slot_draft_tokens_total{slot="0"}'
BUSY = 'llamacpp:slot_busy{slot="0"}'


def page(drafted: int, busy: int = 0) -> str:
    declared = "# TYPE llamacpp:slot_draft_tokens_total counter\n# TYPE llamacpp:slot_busy gauge\n"
    return f"{declared}{DRAFTED} {drafted}\n{BUSY} {busy}\n"


@pytest.fixture
async def scraper() -> AsyncIterator[Scraper]:
    scraper = Scraper()
    yield scraper
    await scraper.close()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def test_a_look_has_counters_without_the_warm_up_and_gauges(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = Told(page(13))
    port = await stack.enter_async_context(answering(told))
    await scraper.begin(1, child_at(port), LAUNCH)
    told.page = page(20, busy=1)
    look = await scraper.look([server_of("m", instance_at(port, 1, LAUNCH))], 5)
    assert look.counters == {MTP: {DRAFTED: 7}}
    assert look.gauges == {MTP: {BUSY: 1}}
    assert (look.current, look.flags, look.failures) == ({"m": MTP}, {"m": ({"draft_tokens": 7},)}, {"m": 0})


async def test_simultaneous_callers_share_one_look(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = Told(page(1))
    port = await stack.enter_async_context(answering(told))
    servers = [server_of("m", instance_at(port, 1, LAUNCH))]
    await scraper.begin(1, child_at(port), LAUNCH)
    told.gate.clear()
    callers = [asyncio.create_task(scraper.look(servers, 5)) for _ in range(3)]
    await until(lambda: told.asked == 2, "the server is asked")
    callers[0].cancel()
    told.gate.set()
    looks = await asyncio.gather(*callers[1:], scraper.look(servers, 5))
    assert told.asked == 2
    assert all(look is looks[0] for look in looks)
    assert (await scraper.look(servers, 5)) is not looks[0]


async def test_what_is_made_of_a_look_shares_it_too(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = Told(page(1))
    port = await stack.enter_async_context(answering(told))
    servers = [server_of("m", instance_at(port, 1, LAUNCH))]
    await scraper.begin(1, child_at(port), LAUNCH)
    told.gate.clear()
    made = [asyncio.create_task(scraper.made(servers, 5, lambda look: (look, "made"))) for _ in range(2)]
    await until(lambda: told.asked == 2, "the server is asked")
    looking = asyncio.create_task(scraper.look(servers, 5))
    told.gate.set()
    look = await looking
    assert await asyncio.gather(*made) == [(look, "made")] * 2
    assert told.asked == 2


async def test_all_servers_are_asked_at_once(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = [Told(page(1)) for _ in range(8)]
    servers = []
    for number, one in enumerate(told):
        port, launch = await stack.enter_async_context(answering(one)), launch_of(f"m{number}")
        await scraper.begin(number, child_at(port), launch)
        servers.append(server_of(f"m{number}", instance_at(port, number, launch)))
        one.gate.clear()
    looking = asyncio.create_task(scraper.look(servers, 5))
    await until(lambda: all(one.asked == 2 for one in told), "all are asked before the first has answered")
    for one in told:
        one.gate.set()
    assert (await looking).failures == {f"m{number}": 0 for number in range(8)}


async def test_only_servers_that_serve_are_asked_and_those_that_drain(scraper: Scraper, stack: AsyncExitStack) -> None:
    old, new = Told(page(0)), Told(page(0))
    ports = [await stack.enter_async_context(answering(told)) for told in (old, new)]
    for number, port in enumerate(ports):
        await scraper.begin(number, child_at(port), launch_of("m", key=str(number)))
    old.page, new.page = page(5, busy=1), page(3, busy=0)
    drains = instance_at(ports[0], 0, LAUNCH, Phase.DRAINING)
    look = await scraper.look([server_of("m", drains, instance_at(ports[1], 1, LAUNCH)), server_of("idle")], 5)
    assert look.counters == {MTP: {DRAFTED: 8}}
    assert look.gauges == {MTP: {BUSY: 0}}
    assert look.flags == {"m": ({"draft_tokens": 3}, {"draft_tokens": 5})}
    asked = old.asked, new.asked
    others = [instance_at(ports[0], 0, LAUNCH, phase) for phase in (Phase.LOADING, Phase.STOPPING)]
    look = await scraper.look([server_of("m", *others)], 5)
    assert (old.asked, new.asked) == asked
    assert look.counters == {MTP: {DRAFTED: 8}}
    assert (look.gauges, look.failures) == ({}, {"m": 0})


async def test_a_server_that_does_not_answer_is_counted_and_keeps_its_counters(
    scraper: Scraper, stack: AsyncExitStack
) -> None:
    told = Told(page(0))
    port = await stack.enter_async_context(answering(told))
    servers = [server_of("m", instance_at(port, 1, LAUNCH))]
    await scraper.begin(1, child_at(port), LAUNCH)
    told.page = page(5)
    await scraper.look(servers, 5)
    told.gate.clear()
    assert (await scraper.look(servers, 0.05)).failures == {"m": 1}
    told.gate.set()
    told.page = "<html>"
    look = await scraper.look(servers, 5)
    assert (look.failures, look.counters, look.gauges) == ({"m": 2}, {MTP: {DRAFTED: 5}}, {})
    told.page = page(9)
    look = await scraper.look(servers, 5)
    assert (look.failures, look.counters) == ({"m": 2}, {MTP: {DRAFTED: 9}})


async def test_what_a_server_has_counted_at_its_end_is_kept(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = Told(page(2))
    port = await stack.enter_async_context(answering(told))
    await scraper.begin(1, child_at(port), LAUNCH)
    told.page = page(42)
    await scraper.end(1, is_dead=False)
    look = await scraper.look([server_of("m")], 5)
    assert (look.counters, look.gauges) == ({MTP: {DRAFTED: 40}}, {})


async def test_a_look_that_comes_back_after_the_end_spoils_nothing(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = Told(page(0))
    port = await stack.enter_async_context(answering(told))
    await scraper.begin(1, child_at(port), LAUNCH)
    told.gate.clear()
    told.page = page(10)
    slow = asyncio.create_task(scraper.look([server_of("m", instance_at(port, 1, LAUNCH))], 5))
    await until(lambda: told.asked == 2, "the look has asked")
    told.page = page(25)
    ending = asyncio.create_task(scraper.end(1, is_dead=False))
    await until(lambda: told.asked == 3, "it is read for the last time")
    told.gate.set()
    await ending
    look = await slow
    assert (look.failures, look.gauges) == ({"m": 0}, {})
    assert (await scraper.look([server_of("m")], 5)).counters == {MTP: {DRAFTED: 25}}


async def test_an_end_that_cannot_be_read_is_an_end(
    scraper: Scraper, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.servers.scrape._END_TIMEOUT_SECONDS", 0.05)
    told = Told(page(0))
    port = await stack.enter_async_context(answering(told))
    for number in (1, 2):
        await scraper.begin(number, child_at(port), LAUNCH)
    await scraper.end(1, is_dead=True)
    told.gate.clear()
    began = asyncio.get_running_loop().time()
    await scraper.end(2, is_dead=False)
    assert asyncio.get_running_loop().time() - began < 2
    assert (await scraper.look([server_of("m")], 5)).counters == {MTP: {DRAFTED: 0}}


async def test_a_first_look_that_failed_makes_no_spike(scraper: Scraper, stack: AsyncExitStack) -> None:
    told = Told("<html>")
    port = await stack.enter_async_context(answering(told))
    await scraper.begin(1, child_at(port), LAUNCH)
    for drafted, shown in ((1000, 0), (1004, 4)):
        told.page = page(drafted)
        look = await scraper.look([server_of("m", instance_at(port, 1, LAUNCH))], 5)
        assert look.counters == {MTP: {DRAFTED: shown}}


async def test_series_of_models_that_are_gone_vanish(scraper: Scraper, stack: AsyncExitStack) -> None:
    port = await stack.enter_async_context(answering(Told(page(0))))
    await scraper.begin(1, child_at(port), LAUNCH)
    await scraper.end(1, is_dead=True)
    assert (await scraper.look([server_of("m")], 5)).counters
    look = await scraper.look([server_of("n")], 5)
    assert (look.counters, look.flags, look.current, look.failures) == ({}, {}, {}, {"n": 0})


async def test_a_model_that_comes_during_a_look_is_not_taken_for_gone(scraper: Scraper, stack: AsyncExitStack) -> None:
    slow, new = Told(page(0)), Told(page(0))
    ports = [await stack.enter_async_context(answering(told)) for told in (slow, new)]
    await scraper.begin(1, child_at(ports[0]), launch_of("slow"))
    slow.gate.clear()
    servers = [server_of("slow", instance_at(ports[0], 1, launch_of("slow")))]
    looking = asyncio.create_task(scraper.look(servers, 5))
    await until(lambda: slow.asked == 2, "the look has asked")
    await scraper.begin(2, child_at(ports[1]), LAUNCH)
    slow.gate.set()
    await looking
    new.page = page(7)
    look = await scraper.look([*servers, server_of("m", instance_at(ports[1], 2, LAUNCH))], 5)
    assert (look.counters[MTP], look.current["m"], look.flags["m"]) == ({DRAFTED: 7}, MTP, ({"draft_tokens": 7},))


async def test_recent_looks(scraper: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("orchestrator.servers.scrape.time.monotonic", lambda: now)
    servers = [server_of("m")]

    async def ages() -> tuple[float, float | None]:
        newest, before = await scraper.recent(servers, 5)
        return now - newest.at, None if before is None else newest.at - before.at

    assert await ages() == (0, None)
    now += 0.25
    assert await ages() == (0.25, None)
    now += 20
    # Nobody has looked for so long: the last one before is what there is.
    assert await ages() == (0, 20.25)
    for _ in range(30):
        now += 1
        await ages()
    assert await ages() == (0, 10)
    now += 61
    assert await ages() == (0, None)
