"""Who starts, and who has to go for it: memory, victims, turns, order, refusals."""

import timeit
from typing import Any

import pytest

from orchestrator.servers.scheduling import Instance, Model, Option, Phase, Rules, Start, plan
from tests.unit.servers.scheduling.pictures import GIB, NOW, done, model, option, runs, waits, whys, world, world_of


def test_nothing_is_done_for_models_at_rest() -> None:
    decision = plan(world(*(model(name) for name in "abc"), runs("a")))
    assert decision.actions == () and decision.waits == {} and decision.refusals == {} and decision.wake_at is None


@pytest.mark.parametrize("need", [{"waiting": 1}, {"asked": True}, {"wanted": True}], ids=str)
def test_it_starts_where_there_is_room(need: dict[str, Any]) -> None:
    decision = plan(world(model("b", 6, **need), runs("a", 4)))
    assert [(a.model, a.option) for a in decision.actions if isinstance(a, Start)] == [("b", option("b", 6))]
    assert decision.waits == {}


def test_a_device_without_a_budget_has_no_bound() -> None:
    assert done(plan(world(waits("b", options=(option("b", 500, device="CUDA9"),)), runs("a", 10)))) == ["start b"]


def test_every_device_has_to_have_room() -> None:
    both = waits("b", options=(Option("local", "b", {"CUDA0": GIB, "host": 3 * GIB}),))
    filled = runs("a", needs={"host": 30 * GIB})
    assert done(plan(world(both, filled, model("a", pinned=True), CUDA0=10, host=32))) == []
    assert done(plan(world(both, filled, CUDA0=10, host=33))) == ["start b"]


@pytest.mark.parametrize("phase", list(Phase))
def test_memory_is_held_until_an_instance_has_ended(phase: Phase) -> None:
    held = runs("a", 8, phase=phase, running=1, drain_until=NOW + 9)
    assert "start b" not in done(plan(world(waits("b"), held)))


def test_one_that_loads_already_is_not_started_again() -> None:
    assert done(plan(world(waits("a"), runs("a", phase=Phase.LOADING)))) == []


def test_one_that_drains_is_started_anew_beside() -> None:
    draining = runs("a", phase=Phase.DRAINING, running=1, drain_until=NOW + 9)
    assert done(plan(world(waits("a"), draining))) == ["start a"]


def test_an_idle_one_makes_room_at_once() -> None:
    decision = plan(world(waits("b", 8), runs("a")))
    assert done(decision) == ["stop 1"] and whys(decision) == ["makes room for 'b' on CUDA0"]
    assert decision.waits == {"b": "'a' has to leave CUDA0 first"}


def test_a_busy_one_whose_turn_is_over_is_drained() -> None:
    decision = plan(world(waits("b", 8), runs("a", running=3)))
    assert done(decision) == ["drain 1"] and decision.wake_at == NOW + 60


@pytest.mark.parametrize(
    ("load_seconds", "turn_seconds"), [(5.0, 15), (0.01, 1), (500.0, 60)], ids=["three loads", "least", "most"]
)
def test_a_busy_one_has_its_turn(load_seconds: float, turn_seconds: float) -> None:
    busy = runs("a", running=1, since=NOW, load_seconds=load_seconds)
    decision = plan(world(waits("b", 8), busy))
    assert done(decision) == [] and decision.wake_at == NOW + turn_seconds
    assert decision.waits == {"b": "'a' has to leave CUDA0 first, once its turn is over"}
    assert done(plan(world(waits("b", 8), busy, now=NOW + turn_seconds))) == ["drain 1"]


def test_one_that_is_ready_and_about_to_serve_has_its_turn_too() -> None:
    fresh = runs("a", since=NOW, idle_since=NOW)
    assert done(plan(world(waits("b", 8), waits("a"), fresh))) == []


def test_commands_wait_for_nobodys_turn() -> None:
    assert done(plan(world(model("b", 8, asked=True), runs("a", running=1, since=NOW)))) == ["drain 1"]


@pytest.mark.parametrize(
    ("fields", "demand", "expected"),
    [
        ({}, {}, ["stop 1"]),
        ({"waiting": 1}, {}, []),
        ({"wanted": True}, {}, []),
        ({"asked": True}, {}, []),
        ({"waiting": 1}, {"asked": True}, []),
        ({"wanted": True}, {"asked": True}, ["stop 1"]),
        ({"asked": True}, {"asked": True, "priority": 9}, []),
    ],
    ids=["nobody needs it", "waited for", "wanted", "asked", "waited for, a command", "wanted, a command", "commands"],
)
def test_one_that_loads_goes_only_if_nobody_needs_it(
    fields: dict[str, Any], demand: dict[str, Any], expected: list[str]
) -> None:
    loading = runs("a", phase=Phase.LOADING)
    decision = plan(world(waits("b", 8, **demand), model("a", **fields), loading))
    assert done(decision) == expected
    if not expected:
        assert "'a' has to leave CUDA0 first, once it has loaded" in decision.waits["b"]


def test_one_for_which_a_command_waits_stays() -> None:
    assert done(plan(world(waits("b", 8), model("a", asked=True), runs("a")))) == []


def test_nobody_goes_if_enough_is_coming_back() -> None:
    draining = runs("a", phase=Phase.DRAINING, running=1, drain_until=NOW + 9)
    decision = plan(world(waits("c", 6), draining, runs("b")))
    assert done(decision) == [] and decision.waits == {"c": "'a' has to leave CUDA0 first"}
    assert decision.wake_at == NOW + 9


def test_nobody_goes_for_nothing() -> None:
    other_device = runs("a", needs={"CUDA1": 4 * GIB})
    blocked = world(waits("c", 8), model("b", pinned=True), other_device, runs("b"), CUDA0=10, CUDA1=10)
    assert done(plan(blocked)) == []


LEAST = [
    ("idle before busy", {}, {"priority": 9}, {"running": 1}, {}),
    ("lower priority", {"priority": 1}, {}, {}, {"idle_since": NOW - 1}),
    ("not wanted", {"wanted": True}, {}, {}, {"idle_since": NOW - 1}),
    ("idle longer", {}, {}, {"idle_since": NOW - 10}, {"idle_since": NOW - 20}),
    ("quicker to bring back", {}, {}, {"load_seconds": 60.0}, {"load_seconds": 2.0}),
    ("priority before wanted", {"priority": 1}, {"wanted": True}, {}, {}),
    ("first by number", {}, {}, {"id": 9}, {}),
]


@pytest.mark.parametrize(("stays", "goes", "stays_run", "goes_run"), [x[1:] for x in LEAST], ids=[x[0] for x in LEAST])
def test_the_least_valued_goes(
    stays: dict[str, Any], goes: dict[str, Any], stays_run: dict[str, Any], goes_run: dict[str, Any]
) -> None:
    instances = runs("a", **stays_run), runs("b", **goes_run)
    assert done(plan(world(waits("c"), model("a", **stays), model("b", **goes), *instances))) == ["stop 2"]


def test_of_those_chosen_the_superfluous_stay() -> None:
    small, large = runs("a", 2, idle_since=NOW - 90), runs("b", 8)
    assert done(plan(world(waits("c", 7), small, large))) == ["stop 2"]


def test_several_go_together_or_not_at_all() -> None:
    idle, busy = runs("a", 5), runs("b", 5, running=1, since=NOW)
    decision = plan(world(waits("c", 9), idle, busy))
    assert done(decision) == [] and decision.wake_at == NOW + 15
    assert decision.waits == {"c": "'b' has to leave CUDA0 first, once its turn is over"}
    assert done(plan(world(waits("c", 9), idle, busy, now=NOW + 15))) == ["stop 1", "drain 2"]


def test_the_option_with_room_is_taken() -> None:
    ways = (option("b on one", 8), option("b on two", 8, device="CUDA1"))
    assert done(plan(world(waits("b", options=ways), runs("a"), CUDA0=10, CUDA1=10))) == ["start b on two"]
    assert done(plan(world(waits("b", options=ways), CUDA0=10, CUDA1=10))) == ["start b on one"]


def test_the_option_with_the_cheaper_victims_is_taken() -> None:
    ways = (option("c on one", 8), option("c on two", 8, device="CUDA1"))
    busy, idle = runs("a", running=1), runs("b", needs={"CUDA1": 4 * GIB})
    assert done(plan(world(waits("c", options=ways), busy, idle, CUDA0=10, CUDA1=10))) == ["stop 2"]


def test_hosts_are_told_apart() -> None:
    budgets = {"near": {"CUDA0": 10 * GIB}, "far": {"CUDA0": 10 * GIB}}
    ways = (option("c near", 8, host="near"), option("c far", 8, host="far"))
    near, far = runs("a", running=1, host="near", since=NOW), runs("b", host="far")
    assert done(plan(world_of(budgets, waits("c", options=ways), near))) == ["start c far"]
    decision = plan(world_of(budgets, waits("c", options=ways), near, far))
    assert done(decision) == ["stop 2"] and whys(decision) == ["makes room for 'c' on CUDA0 of 'far'"]


def order(*models: Model) -> list[str]:
    """Which of them starts, one after the other, where there is room for one at a time."""
    left, seen = list(models), []
    while left:
        starts = done(plan(world(*left)))
        assert len(starts) == 1
        seen.append(starts[0].removeprefix("start "))
        left = [m for m in left if m.name != seen[-1]]
    return seen


def test_commands_go_first_then_who_has_waited_longest() -> None:
    late, early = waits("a", 8, waiting_since=NOW - 1), waits("b", 8, waiting_since=NOW - 2)
    assert order(late, early, model("c", 8, asked=True)) == ["c", "b", "a"]


def test_a_level_of_priority_is_worth_half_a_minute() -> None:
    early, high = waits("a", 8, waiting_since=NOW - 40), waits("b", 8, waiting_since=NOW - 11, priority=1)
    assert order(early, high) == ["b", "a"]
    assert order(early, waits("b", 8, waiting_since=NOW - 9, priority=1)) == ["a", "b"]
    assert order(waits("b", 8), waits("a", 8)) == ["a", "b"]


def test_a_queue_does_not_win_back_the_memory_that_its_server_gave_up() -> None:
    long, short = waits("a", 8, waiting=99, waiting_since=NOW - 40, turn_ended=NOW - 1), waits("b", 8)
    assert order(long, short) == ["b", "a"]


def test_memory_is_kept_for_who_is_first() -> None:
    draining = runs("a", 6, phase=Phase.DRAINING, running=1, drain_until=NOW + 9)
    first, second = waits("b", 8, waiting_since=NOW - 20), waits("c", 4)
    decision = plan(world(first, second, model("d", 4, wanted=True), draining))
    assert done(decision) == [] and decision.waits["c"] == "'b' goes before it"
    assert done(plan(world(first, waits("c", 2), draining))) == ["start c"]


def test_memory_is_kept_for_who_waits_for_a_turn() -> None:
    busy = runs("a", 6, running=1, since=NOW)
    assert done(plan(world(waits("b", 8, waiting_since=NOW - 20), waits("c", 4), busy))) == []


def test_memory_comes_back_once() -> None:
    over = runs("a", 4, phase=Phase.DRAINING, running=1, drain_until=NOW)
    decision = plan(world(waits("b", 7, waiting_since=NOW - 20), waits("a", 4), over))
    assert done(decision) == ["stop 1"] and set(decision.waits) == {"a", "b"}


def test_memory_that_nobody_speaks_for_is_given() -> None:
    busy = runs("a", 8, running=1, since=NOW)
    first = waits("b", 8, waiting_since=NOW - 20)
    assert done(plan(world(first, waits("c", 2), busy))) == ["start c"]
    assert done(plan(world(first, waits("c", 2.5), busy))) == []


def test_a_victim_is_chosen_once() -> None:
    first, second = waits("b", 8, waiting_since=NOW - 20), waits("c", 8)
    decision = plan(world(first, second, runs("a", 8)))
    assert done(decision) == ["stop 1"] and set(decision.waits) == {"b", "c"}


def test_a_request_does_not_wake_one_that_rests() -> None:
    resting = world(waits("a", not_before=NOW + 20))
    decision = plan(resting)
    assert done(decision) == [] and decision.wake_at == NOW + 20 and "rests" in decision.waits["a"]
    assert done(plan(world(waits("a", not_before=NOW)))) == ["start a"]
    assert done(plan(world(model("a", not_before=NOW + 20, asked=True)))) == ["start a"]


def test_nobody_waits_behind_one_that_rests() -> None:
    assert done(plan(world(waits("a", 8, not_before=NOW + 20, priority=9), waits("b", 8)))) == ["start b"]


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ([waits("c", 11)], "it needs 11.0 GiB of CUDA0, which gives 10.0 GiB at most"),
        (
            [waits("c", 8), model("a", pinned=True), runs("a", 2.5)],
            "it needs 8.0 GiB of CUDA0, and 2.5 GiB of its 10.0 GiB are held by 'a', which never make room (pinned)",
        ),
        (
            [waits("c", options=(option("c", 11), option("c", 0.5, device="host")))],
            "it needs 11.0 GiB of CUDA0, which gives 10.0 GiB at most or it needs 512 MiB of RAM, which gives "
            "256 MiB at most",
        ),
    ],
    ids=["too large", "pinned", "two ways"],
)
def test_what_can_never_fit_is_refused_with_numbers(things: list[Model | Instance], expected: str) -> None:
    decision = plan(world(*things, CUDA0=10, host=0.25))
    assert done(decision) == [] and decision.waits == {}
    assert decision.refusals == {"c": expected}


def test_one_way_that_can_is_enough_to_wait() -> None:
    ways = (option("c", 11), option("c on two", 8, device="CUDA1"))
    decision = plan(world(waits("c", options=ways), runs("a", needs={"CUDA1": 4 * GIB}), CUDA0=10, CUDA1=10))
    assert done(decision) == ["stop 1"] and decision.refusals == {}


def test_a_pinned_one_that_goes_anyway_is_no_reason_to_refuse() -> None:
    going = runs("a", phase=Phase.DRAINING, running=1, drain_until=NOW + 9)
    decision = plan(world(waits("b", 8), model("a", pinned=True), going))
    assert decision.refusals == {} and set(decision.waits) == {"b"}


def test_a_wanted_one_comes_back_only_where_nobody_has_to_go() -> None:
    assert done(plan(world(model("b", 8, wanted=True), runs("a")))) == []
    assert done(plan(world(model("b", 6, wanted=True), runs("a")))) == ["start b"]


def test_wanted_ones_come_back_by_priority_after_who_is_waited_for() -> None:
    decision = plan(world(model("a", 5, wanted=True), model("b", 5, wanted=True, priority=1), waits("c", 4)))
    assert done(decision) == ["start c", "start b"]


def test_a_wanted_one_that_failed_rests() -> None:
    decision = plan(world(model("a", wanted=True, not_before=NOW + 20)))
    assert done(decision) == [] and decision.wake_at == NOW + 20


def test_a_wanted_one_waits_until_its_old_server_is_gone() -> None:
    assert done(plan(world(model("a", wanted=True), runs("a", phase=Phase.STOPPING)))) == []


def test_two_commands_do_not_wait_for_each_other() -> None:
    renewed = (model("a", options=(option("a2", 8),), asked=True), model("b", options=(option("b2", 5),), asked=True))
    decision = plan(world(*renewed, runs("a", 5), runs("b", 5)))
    assert done(decision) == ["stop 1", "stop 2"]


def test_it_wakes_at_the_earliest_of_what_time_alone_changes() -> None:
    things: list[Model | Instance] = [
        model("a", idle_seconds=58.0),
        runs("a", 1),
        runs("b", 1, phase=Phase.DRAINING, running=1, drain_until=NOW + 7),
        waits("d", 9),
        runs("c", 4, running=1, since=NOW - 9),
        waits("e", 1, not_before=NOW + 6.5),
    ]
    assert plan(world(*things)).wake_at == NOW + 6
    rules = Rules(turn_least_seconds=20, turn_most_seconds=20)
    assert plan(world(*things, rules=rules)).wake_at == NOW + 6.5


def test_a_long_catalogue_costs_less_than_a_millisecond() -> None:
    models = [model(f"m{n}", 1) for n in range(100)]
    serving = [runs("a", 1, id=n, model=f"m{n}", launch=f"m{n}", running=1) for n in range(10)]
    at_rest = world(*models, *serving)
    assert plan(at_rest).actions == ()
    assert min(timeit.repeat(lambda: plan(at_rest), number=1, repeat=20)) < 0.001
