"""Models that exclude each other, and models that take the place of others."""

from typing import Any

import pytest

from orchestrator.servers.scheduling import Phase, plan
from tests.unit.servers.scheduling.pictures import GIB, NOW, done, model, option, runs, waits, whys, world, world_of


def test_of_a_group_one_is_loaded_at_a_time() -> None:
    decision = plan(world(waits("b", 1, group="g"), model("a", group="g"), runs("a", 1)))
    assert done(decision) == ["stop 1"]
    assert whys(decision) == ["makes room for 'b': of group 'g' one is loaded at a time"]
    assert decision.waits == {"b": "'a' has to leave group 'g' first"}


def test_a_group_spans_hosts() -> None:
    budgets = {"near": {"CUDA0": 10 * GIB}, "far": {"CUDA0": 10 * GIB}}
    far = waits("b", options=(option("b", 1, host="far"),), group="g")
    assert done(plan(world_of(budgets, far, model("a", group="g"), runs("a", 1, host="near")))) == ["stop 1"]


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.STOPPING])
def test_a_member_starts_when_the_other_is_gone(phase: Phase) -> None:
    going = runs("a", 1, phase=phase, running=1, drain_until=NOW + 9)
    decision = plan(world(waits("b", 1, group="g"), model("a", group="g"), going))
    assert done(decision) == [] and decision.waits == {"b": "'a' has to leave group 'g' first"}


def test_a_member_has_its_turn() -> None:
    busy = runs("a", 1, running=1, since=NOW)
    decision = plan(world(waits("b", 1, group="g"), model("a", group="g"), busy))
    assert done(decision) == [] and decision.wake_at == NOW + 15


def test_a_pinned_member_keeps_the_others_out() -> None:
    decision = plan(world(waits("b", 1, group="g"), model("a", group="g", pinned=True), runs("a", 1)))
    assert decision.refusals == {"b": "of group 'g' one is loaded at a time, and 'a' never makes room (pinned)"}


def test_two_members_do_not_start_together() -> None:
    decision = plan(world(waits("a", 1, group="g"), waits("b", 1, group="g"), model("c", 1, group="g", wanted=True)))
    assert done(decision) == ["start a"]
    assert decision.waits == {"b": "'a' is of the same group and goes before it"}


def test_a_member_whose_own_server_drains_is_not_held_by_it() -> None:
    draining = runs("a", 1, phase=Phase.DRAINING, running=1, drain_until=NOW + 9)
    assert done(plan(world(waits("a", 1, group="g"), draining))) == ["start a"]


SWAP: dict[str, Any] = {"asked": True, "replaces": ("a",)}


def test_the_replaced_one_serves_until_the_new_one_is_ready_where_both_fit() -> None:
    busy = runs("a", running=1)
    assert done(plan(world(model("b", **SWAP), model("a"), busy))) == ["start b"]
    assert done(plan(world(model("b", **SWAP), model("a"), busy, runs("b", phase=Phase.LOADING)))) == []
    decision = plan(world(model("b", **SWAP), model("a"), busy, runs("b")))
    assert done(decision) == ["drain 1"] and whys(decision) == ["replaced by 'b'"]


def test_the_replaced_ones_go_first_where_memory_is_short() -> None:
    others = model("a", pinned=True, priority=9), runs("a", 3, running=1, since=NOW), model("c"), runs("c", 3)
    decision = plan(world(model("b", 6, **SWAP), *others))
    assert done(decision) == ["drain 1"] and whys(decision) == ["replaced by 'b'"]
    assert decision.waits == {"b": "'a' has to leave CUDA0 first"}


def test_others_go_too_if_that_is_not_enough() -> None:
    decision = plan(world(model("b", 8, **SWAP), runs("a", 3), runs("c", 3, running=1, since=NOW)))
    assert done(decision) == ["stop 1", "drain 3"]


def test_nobody_is_replaced_by_one_that_can_never_fit() -> None:
    decision = plan(world(model("b", 11, **SWAP), runs("a")))
    assert done(decision) == [] and set(decision.refusals) == {"b"}


def test_a_replaced_one_on_another_host_stays_until_the_new_one_is_ready() -> None:
    budgets = {"near": {"CUDA0": 10 * GIB}, "far": {"CUDA0": 10 * GIB}}
    here = model("b", options=(option("b", 8, host="near"),), asked=True, replaces=("a", "c"))
    away, near = runs("a", 3, host="far"), runs("c", 3, host="near")
    assert done(plan(world_of(budgets, here, away, near))) == ["stop 3"]
    assert done(plan(world_of(budgets, here, away, runs("b", 8, host="near")))) == ["stop 1"]


def test_a_load_of_a_replaced_one_is_given_up() -> None:
    loading = runs("a", phase=Phase.LOADING)
    assert done(plan(world(model("b", 8, **SWAP), waits("a"), loading))) == ["stop 1"]


def test_a_replaced_one_does_not_come_back_meanwhile() -> None:
    decision = plan(world(model("b", 2, **SWAP), waits("a", 2), runs("b", 2)))
    assert done(decision) == [] and decision.waits == {"a": "it is being replaced by 'b'"}
    assert done(plan(world(model("b", 2, **SWAP), model("a", 2, wanted=True), runs("b", 2)))) == []


def test_a_replaced_member_of_its_group_may_be_pinned() -> None:
    new = model("b", 1, group="g", **SWAP)
    assert done(plan(world(new, model("a", group="g", pinned=True), runs("a", 1)))) == ["stop 1"]


def test_one_that_a_command_replaces_is_no_reason_to_refuse_others() -> None:
    pinned = model("a", pinned=True), runs("a", 6, running=1)
    both = model("b", 4, **SWAP), runs("b", 4, phase=Phase.LOADING)
    decision = plan(world(*both, waits("c", 6), *pinned))
    assert done(decision) == [] and decision.refusals == {} and set(decision.waits) == {"c"}


def test_nobody_takes_from_a_command_what_only_that_may_replace() -> None:
    first, pinned = model("0", 10, asked=True), (model("a", pinned=True), runs("a"))
    decision = plan(world(first, model("b", 8, **SWAP), *pinned))
    assert done(decision) == ["stop 1"] and decision.waits["0"] == "'a' is pinned, and has yet to be replaced"


def test_a_command_whose_model_is_being_replaced_replaces_nobody_yet() -> None:
    first, second = model("b", 8, asked=True, replaces=("c",)), model("c", 8, asked=True, replaces=("a",))
    decision = plan(world(first, second, model("a", pinned=True), runs("a")))
    assert done(decision) == [] and set(decision.refusals) == {"b"}
    assert decision.waits == {"c": "it is being replaced by 'b'"}


def test_replaces_means_nothing_without_a_command() -> None:
    both = model("b", replaces=("a",)), model("a"), runs("a"), runs("b")
    assert done(plan(world(*both))) == []


def test_of_two_that_replace_each_other_the_first_in_order_wins() -> None:
    first, second = model("a", 8, asked=True, replaces=("b",)), model("b", 8, asked=True, replaces=("a",))
    assert done(plan(world(first, second, runs("a", 8)))) == []
    assert done(plan(world(first, second, runs("b", 8)))) == ["stop 2"]
    assert done(plan(world(first, second))) == ["start a"]


def test_a_model_does_not_replace_itself() -> None:
    assert done(plan(world(model("a", asked=True, replaces=("a",)), runs("a")))) == []
    assert done(plan(world(model("a", asked=True, replaces=("a",))))) == ["start a"]
