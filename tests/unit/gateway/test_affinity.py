"""Which slot a request gets, when it waits for one, and what is remembered of it."""

import asyncio

import pytest

from orchestrator.gateway.affinity import Place, Slot, Slots, choose
from orchestrator.gateway.conversations import Conversation, conversation_of
from tests.unit.conftest import until


def chat(*texts: str, system: str = "s") -> Conversation:
    turns = [{"role": "user", "content": text} for text in texts]
    found = conversation_of({"messages": [{"role": "system", "content": system}, *turns]})
    assert found is not None
    return found


def number(place: Place) -> int | None:
    return None if place.slot is None else place.slot.number


def slots(*held: Conversation | None, busy: tuple[int, ...] = ()) -> list[Slot]:
    """Slots that were used in this order."""
    return [Slot(i, h, is_busy=i in busy, used=i + 1) for i, h in enumerate(held)]


@pytest.mark.parametrize(
    "found, expected",
    [
        (slots(chat("x"), chat("a"), None), 1),
        (slots(chat("a"), chat("a", "b"), None), 1),
        (slots(chat("a", "b"), chat("a", "b")), 1),
        (slots(chat("a", "b", "other"), None, chat("x")), 0),
        (slots(chat("x"), None, chat("y")), 1),
        (slots(chat("x"), chat("y")), 0),
        (slots(chat("x"), chat("a"), busy=(1,)), 0),
        (slots(chat("a"), busy=(0,)), None),
        ([], None),
    ],
)
def test_the_best_of_the_free_slots(found: list[Slot], expected: int | None) -> None:
    slot = choose(found, chat("a", "b", "c"))
    assert (None if slot is None else slot.number) == expected


async def test_two_conversations_keep_to_their_slots() -> None:
    slots = Slots(2)
    turns: dict[str, tuple[str, ...]] = {"a": ("a1",), "b": ("b1",)}
    seen = []
    for _ in range(3):
        for name in turns:
            place = await slots.take(chat(*turns[name]))
            seen.append((name, number(place), place.goes_on))
            slots.give_back(place, chat(*turns[name]))
            turns[name] += ("answer", "next")
    assert seen == [("a", 0, False), ("b", 1, False), *[("a", 0, True), ("b", 1, True)] * 2]


async def test_what_must_be_erased() -> None:
    slots = Slots(1)
    first = await slots.take(chat("a"))
    assert first.must_erase, "the warm-up has left something"
    slots.erased(first)
    slots.give_back(first, None)
    second = await slots.take(chat("a"))
    assert not second.must_erase, "it is known to be empty"
    slots.give_back(second, chat("a"))
    going_on = await slots.take(chat("a", "b"))
    assert not going_on.must_erase
    slots.give_back(going_on, chat("a", "b"))
    assert (await slots.take(chat("x"))).must_erase


async def test_who_finds_no_free_slot_waits_in_order() -> None:
    slots = Slots(1)
    place = await slots.take(chat("a"))
    waiting = [asyncio.create_task(slots.take(chat(text))) for text in "xyz"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    slots.give_back(place, chat("a"))
    got = await waiting[0]
    assert not waiting[2].done()
    slots.give_back(got, None)
    assert number(await waiting[2]) == 0


async def test_a_place_that_is_granted_to_one_who_leaves_goes_to_the_next() -> None:
    slots = Slots(1)
    place = await slots.take(chat("a"))
    leaver, stayer = (asyncio.create_task(slots.take(chat(text))) for text in "xy")
    await asyncio.sleep(0)
    slots.give_back(place, None)
    leaver.cancel()
    async with asyncio.timeout(1):
        assert number(await stayer) == 0


async def test_a_client_may_name_its_slot_and_waits_for_it_alone() -> None:
    slots = Slots(2)
    one = await slots.take(chat("a"), wanted=1)
    assert number(one) == 1
    same = asyncio.create_task(slots.take(chat("b"), wanted=3))
    await asyncio.sleep(0)
    other = asyncio.create_task(slots.take(chat("c")))
    assert number(await other) == 0, "a free slot is not kept from who comes later"
    assert not same.done()
    slots.give_back(one, None)
    assert number(await same) == 1


async def test_while_one_runs_anywhere_so_do_all() -> None:
    slots = Slots(2)
    known = await slots.take(chat("a"))
    slots.give_back(known, chat("a"))
    anywhere = await slots.take(None)
    beside = await slots.take(chat("a", "b"))
    assert (number(anywhere), number(beside), beside.must_erase) == (None, None, False)
    slots.give_back(anywhere, None)
    slots.give_back(beside, None)
    after = await slots.take(chat("a", "b"))
    assert number(after) is not None and not after.goes_on, "nobody knows what the slots hold now"


async def test_who_waits_when_one_begins_to_run_anywhere_is_not_forgotten() -> None:
    slots = Slots(1)
    place = await slots.take(chat("a"))
    waiting = asyncio.create_task(slots.take(chat("b")))
    await asyncio.sleep(0)
    anywhere = await slots.take(None)
    slots.give_back(place, chat("a"))
    got = await waiting
    assert number(got) is None
    for one in (anywhere, got):
        slots.give_back(one, None)
    assert number(await slots.take(chat("c"))) == 0


async def test_a_server_without_slots_is_left_to_choose() -> None:
    assert number(await Slots(0).take(chat("a"))) is None
    await until(lambda: True, "nothing waits")
