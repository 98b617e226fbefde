"""Who goes without anybody needing its memory: asked to, drained, of an old version, idle."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.servers.scheduling import Drain, Instance, Phase, Rules, World, plan
from tests.unit.servers.scheduling.pictures import NOW, done, model, option, runs, waits, whys, world


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (runs("a", phase=Phase.LOADING), ["stop 1"]),
        (runs("a"), ["stop 1"]),
        (runs("a", running=1), ["drain 1"]),
        (runs("a", phase=Phase.DRAINING, running=1, drain_until=NOW + 5), []),
        (runs("a", phase=Phase.STOPPING, running=1), []),
    ],
    ids=["loading", "idle", "busy", "draining already", "stopping already"],
)
def test_one_that_is_to_leave(instance: Instance, expected: list[str]) -> None:
    decision = plan(world(model("a", leaving=True), instance))
    assert done(decision) == expected
    assert all(why == "asked to stop" for why in whys(decision))


def test_a_drain_has_the_time_of_the_rules() -> None:
    decision = plan(world(model("a", leaving=True), runs("a", running=1), rules=Rules(drain_seconds=7)))
    assert decision.actions == (Drain(1, NOW + 7, "asked to stop"),)
    assert decision.wake_at == NOW + 7


def test_nothing_starts_of_one_that_is_to_leave() -> None:
    decision = plan(world(waits("a", leaving=True, wanted=True)))
    assert done(decision) == [] and decision.waits == {"a": "it is being stopped"}


def test_pins_do_not_hold_against_the_operator() -> None:
    assert done(plan(world(model("a", leaving=True, pinned=True), runs("a")))) == ["stop 1"]


@pytest.mark.parametrize(
    ("running", "until", "expected", "wake_at"),
    [(0, 50, ["stop 1"], None), (2, 0.5, [], NOW + 0.5), (2, 0, ["stop 1"], None), (2, -1, ["stop 1"], None)],
    ids=["answers ended", "answers go on", "time is over", "time was over"],
)
def test_a_drain_ends(running: int, until: float, expected: list[str], wake_at: float | None) -> None:
    draining = runs("a", phase=Phase.DRAINING, running=running, drain_until=NOW + until)
    decision = plan(world(model("a"), draining))
    assert done(decision) == expected and decision.wake_at == wake_at


# Versions of one model: instance 1 runs as "a", which is old once the model's launch is "a2".


def renewed(gib: float = 4, **fields: Any) -> World:
    new = model("a", options=(option("a2", gib),), **fields)
    return world(new, runs("a", running=1))


def test_an_old_version_serves_while_nobody_needs_the_new_one() -> None:
    assert done(plan(renewed())) == []


@pytest.mark.parametrize("need", [{"asked": True}, {"waiting": 1}], ids=["asked", "waiting"])
def test_a_new_version_that_fits_beside_the_old_one_starts_first(need: dict[str, Any]) -> None:
    assert done(plan(renewed(**need))) == ["start a2"]


def test_the_old_version_goes_when_the_new_one_is_ready() -> None:
    old = renewed(asked=True)
    loading = runs("a", id=2, launch="a2", phase=Phase.LOADING)
    assert done(plan(replace(old, instances=(*old.instances, loading)))) == []
    ready = replace(loading, phase=Phase.READY)
    decision = plan(replace(old, instances=(*old.instances, ready)))
    assert done(decision) == ["drain 1"] and whys(decision) == ["its new version is ready"]


def test_the_old_version_goes_first_where_both_do_not_fit() -> None:
    decision = plan(renewed(7, asked=True))
    assert done(decision) == ["drain 1"] and whys(decision) == ["makes room for its new version"]
    assert decision.waits == {"a": "its old version has to leave CUDA0 first"}


def test_the_old_version_goes_rather_than_another_model() -> None:
    new = model("a", options=(option("a2", 6),), asked=True)
    assert done(plan(world(new, model("b"), runs("a", running=1), runs("b")))) == ["drain 1"]


def test_others_go_for_a_new_version_only_if_the_old_one_is_not_enough() -> None:
    new = model("a", options=(option("a2", 9),), asked=True)
    decision = plan(world(new, model("b"), runs("a", running=1), runs("b")))
    assert done(decision) == ["drain 1", "stop 2"]


def test_the_old_version_stays_if_the_new_one_can_never_fit() -> None:
    decision = plan(renewed(11, asked=True))
    assert done(decision) == []
    assert decision.refusals == {"a": "it needs 11.0 GiB of CUDA0, which gives 10.0 GiB at most"}


def test_a_pinned_model_may_be_renewed() -> None:
    assert done(plan(renewed(7, asked=True, pinned=True))) == ["drain 1"]


def test_a_load_of_an_old_version_is_given_up() -> None:
    new = model("a", options=(option("a2"),), asked=True)
    assert done(plan(world(new, runs("a", phase=Phase.LOADING)))) == ["stop 1", "start a2"]


def test_what_has_no_launch_goes_on_as_it_is() -> None:
    gone = model("a", options=(), asked=True, waiting=1)
    assert done(plan(world(gone, runs("a")))) == []
    assert done(plan(world(gone, runs("a", phase=Phase.LOADING)))) == []
    assert plan(world(gone)).waits == {"a": "there is no launch for it yet"}


def test_one_that_no_model_speaks_for_goes_on() -> None:
    assert done(plan(world(runs("a")))) == []


def test_of_two_that_were_taken_over_one_stays() -> None:
    twice = (runs("a", phase=Phase.LOADING), runs("a", id=2), runs("a", id=3, running=1))
    assert done(plan(world(model("a"), *twice, CUDA0=20))) == ["stop 1", "drain 3"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["stop 1"]),
        ({"pinned": True}, []),
        ({"wanted": True}, []),
        ({"asked": True}, []),
        ({"waiting": 1}, []),
        ({"idle_seconds": None}, []),
        ({"idle_seconds": 51.0}, []),
    ],
    ids=["long enough", "pinned", "wanted", "asked", "a request is about to get it", "no bound", "not long enough"],
)
def test_an_idle_one_is_stopped(fields: dict[str, Any], expected: list[str]) -> None:
    decision = plan(world(model("a", **({"idle_seconds": 50.0} | fields)), runs("a")))
    assert done(decision) == expected
    assert whys(decision) == ["idle for 50 s"] * len(expected)


def test_it_wakes_when_one_has_been_idle_long_enough() -> None:
    idle = world(model("a", idle_seconds=60.0), model("b", idle_seconds=55.0), runs("a"), runs("b"))
    assert plan(idle).wake_at == NOW + 5
    busy = world(model("a", idle_seconds=60.0), runs("a", running=1))
    assert plan(busy).wake_at is None
