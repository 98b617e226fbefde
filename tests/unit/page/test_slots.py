"""Figures of slots: nothing drafted is not 0 %."""

from typing import Any

import pytest

from orchestrator.page.slots import Slot, count, slots_of
from orchestrator.schemas import ModelSpeculation
from tests.unit.page.made import SLOTS, sums


def only_slot(figures: dict[str, Any]) -> Slot:
    slot = figures | {"slot": 0, "busy": False}
    [written] = slots_of(ModelSpeculation.model_validate(figures | {"model": "a", "slots": [slot]}))
    return written


def test_a_slot_that_drafts_has_every_figure() -> None:
    slot = SLOTS[0]
    assert (slot.rate, slot.acceptance, slot.length, slot.share) == ("41.2", "93.8 %", "3.81", "93.8")
    assert (slot.generated, slot.drafted, slot.all_acceptance) == ("12,345", "8,211", "93.8 %")


def test_several_slots_are_summed() -> None:
    assert [slot.name for slot in SLOTS] == ["0", "1", "2", "all"]
    assert (SLOTS[-1].rate, SLOTS[-1].is_busy) == ("82.1", None)


@pytest.mark.parametrize(
    "rate, ratio, silence", [(0.0, None, "no traffic"), (None, None, "no traffic"), (7.5, None, "no drafts")]
)
def test_silence_is_told_apart(rate: Any, ratio: float | None, silence: str) -> None:
    slot = only_slot(sums(0, 0, 0, rate=rate, ratio=ratio))
    assert (slot.silence, slot.acceptance, slot.all_acceptance, slot.drafted) == (silence, None, "", "")
    assert (slot.rate is None) == (silence == "no traffic")


def test_drafts_that_were_all_rejected_are_zero_percent() -> None:
    slot = only_slot(sums(10, 30, 0, rate=5.0, ratio=0.0, length=1.0))
    assert (slot.acceptance, slot.length, slot.all_acceptance) == ("0.0 %", "1.00", "0.0 %")


@pytest.mark.parametrize(
    "number, text",
    [(0, "0"), (12_345, "12,345"), (999_999, "999,999"), (1_230_000, "1.23 M"), (4_500_000_000, "4.50 G")],
)
def test_counts_stay_narrow(number: int, text: str) -> None:
    assert count(number) == text
