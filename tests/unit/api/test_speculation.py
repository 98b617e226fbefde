"""How speculation fares, over HTTP and from two looks."""

import httpx

from orchestrator.servers import speculation
from orchestrator.telemetry import Look
from orchestrator.telemetry.ledger import Account
from tests.unit.conftest import World, ensure
from tests.unit.telemetry.exposed import PATCHED, look


def test_figures_of_the_time_between_two_looks() -> None:
    before, now = look(m=PATCHED), look(m=PATCHED)
    account = Account("m", "draft-mtp")
    grown = {'llamacpp:slot_predicted_tokens_total{slot="0"}': 60, 'llamacpp:slot_draft_tokens_total{slot="0"}': 40}
    grown |= {
        'llamacpp:slot_accepted_tokens_total{slot="0"}': 30,
        'llamacpp:slot_verification_steps_total{slot="0"}': 20,
    }
    counters = {series: value + grown.get(series, 0) for series, value in before.counters[account].items()}
    newest = Look(10.0, {account: counters}, now.gauges, now.current)
    told = speculation(("m", "other"), newest, Look(4.0, before.counters, before.gauges, before.current))
    assert told.window_seconds == 6
    model, other = told.models
    busy, idle = model.slots
    assert (model.model, model.spec_type, busy.slot, busy.busy, idle.slot, idle.busy) == (
        "m",
        "draft-mtp",
        0,
        True,
        1,
        False,
    )
    assert (busy.predicted_tokens, busy.draft_tokens, busy.accepted_tokens) == (430, 693, 179)
    assert (busy.relaxed_tokens, busy.verification_steps, busy.predicted_seconds) == (3, 237, 0.153654)
    assert (busy.tokens_per_second, busy.acceptance_ratio, busy.mean_acceptance_length) == (10, 0.75, 2.5)
    assert (idle.tokens_per_second, idle.acceptance_ratio, idle.mean_acceptance_length) == (0, None, None)
    assert (model.predicted_tokens, model.tokens_per_second, model.acceptance_ratio) == (446, 10, 0.75)
    assert (other.spec_type, other.slots, other.predicted_tokens) == (None, (), 0)


def test_without_an_earlier_look_there_are_sums_alone() -> None:
    told = speculation(("m",), look(m=PATCHED), None)
    assert told.window_seconds is None
    (model,) = told.models
    assert (model.draft_tokens, model.tokens_per_second, model.acceptance_ratio) == (653, None, None)


def test_slots_that_a_server_has_no_more_are_shown_only_while_it_is_down() -> None:
    up = look(m=PATCHED)
    account = Account("m", "draft-mtp")
    fewer = Look(counters=up.counters, gauges={account: {'llamacpp:slot_busy{slot="0"}': 0}}, current=up.current)
    assert [slot.slot for slot in speculation(("m",), fewer, None).models[0].slots] == [0]
    down = speculation(("m",), Look(counters=up.counters, current=up.current), None).models[0]
    assert [(slot.slot, slot.busy) for slot in down.slots] == [(0, None), (1, None)]


async def test_it_is_told_of_every_model_and_starts_none(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a", {"speculation": {"type": "draft-mtp"}}, metrics=PATCHED)
    await world.model("b")
    await ensure(world, "a")
    told = (await http.get("/api/speculation")).raise_for_status().json()
    assert [model["model"] for model in told["models"]] == ["a", "b"]
    assert [model["spec_type"] for model in told["models"]] == ["draft-mtp", None]
    assert [(slot["slot"], slot["busy"], slot["draft_tokens"]) for slot in told["models"][0]["slots"]] == [
        (0, True, 0),
        (1, False, 0),
    ]
    assert world.starts("b") == []
