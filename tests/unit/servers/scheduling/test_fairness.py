"""Nobody starves: the arrangements that invite it, under the worst load."""

import pytest

from tests.unit.servers.scheduling.fleet import Fleet, Kept
from tests.unit.servers.scheduling.weather import BOUND_SECONDS, fair_weather, next_event

BUDGETS = {"near": {"CUDA0": 10}}


def kept(name: str, size: int, load_seconds: float = 0.25, **fields: object) -> Kept:
    made = Kept(name, (("near", {"CUDA0": size}),), load_seconds)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


FLEETS = {
    "a large one among small ones": [kept("a", 10, 4.0), *(kept(name, 3) for name in "bcdef")],
    "large ones among small ones": [kept("a", 9, 4.0), kept("b", 10, 1.0), *(kept(name, 4) for name in "cdef")],
    "low priority": [kept("a", 10, priority=-1), *(kept(name, 6, priority=1) for name in "bcdef")],
    "a group": [*(kept(name, 3, group="g") for name in "abc"), kept("d", 10), kept("e", 5), kept("f", 2)],
    "kept running": [kept("a", 10), *(kept(name, 3, wanted=True) for name in "bcdef")],
}


@pytest.mark.parametrize("models", FLEETS.values(), ids=FLEETS)
def test_everybody_is_served(models: list[Kept]) -> None:
    fair_weather(Fleet(BUDGETS, models))


def test_a_long_queue_takes_turns_with_a_short_one() -> None:
    fleet = Fleet(BUDGETS, [kept("a", 8, concurrent=1), kept("b", 8)])
    for _ in range(100):
        fleet.request("a")
    fleet.pass_time(1)
    fleet.request("b")
    served: list[str] = []
    fleet.on_lease = served.append
    end = fleet.now + BOUND_SECONDS
    while fleet.now < end and "b" not in served:
        next_event(fleet)
    assert served == ["a", "b"]


def test_two_commands_that_need_each_others_memory_both_come_to_an_end() -> None:
    fleet = Fleet(BUDGETS, [kept("a", 5), kept("b", 5)])
    for name in "ab":
        fleet.bring(name)
    next_event(fleet)
    assert fleet.serving("a") and fleet.serving("b")
    fleet.models["a"].ways = (("near", {"CUDA0": 8}),)
    for name in "ab":
        fleet.bring(name, renewed=True)
    for _ in range(20):
        next_event(fleet)
    assert [model.command for model in fleet.models.values()] == [None, None]
