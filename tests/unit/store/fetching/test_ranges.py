import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.store.fetching.ranges import UNBOUNDED, Plan, Ranges


@pytest.mark.parametrize(
    "added, there",
    [
        ([(0, 5), (5, 9)], [(0, 9)]),
        ([(5, 9), (0, 3)], [(0, 3), (5, 9)]),
        ([(0, 3), (7, 9), (2, 8)], [(0, 9)]),
        ([(4, 4), (6, 5)], []),
    ],
)
def test_ranges_that_touch_become_one(added: list[tuple[int, int]], there: list[tuple[int, int]]) -> None:
    assert list(Ranges(added)) == there


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_ranges_are_the_set_of_their_bytes(added: list[tuple[int, int]]) -> None:
    ranges, there = Ranges(added), {byte for start, stop in added for byte in range(start, stop)}
    assert {byte for start, stop in ranges for byte in range(start, stop)} == there
    assert ranges.bytes == len(there)
    assert {byte for start, stop in ranges.gaps(60) for byte in range(start, stop)} == set(range(60)) - there
    assert ranges.front == next(byte for byte in range(62) if byte not in there)


def test_one_connection_takes_all_that_is_missing() -> None:
    plan = Plan(100, [(0, 30), (60, 70)])
    first, second = plan.claim(None), plan.claim(None)
    assert first and second and (first.start, first.stop, second.start, second.stop) == (30, 60, 70, 100)
    assert plan.claim(None) is None


def test_several_take_segments_in_order_and_what_is_released_is_taken_again() -> None:
    plan = Plan(100)
    claims = [plan.claim(40) for _ in range(3)]
    assert [(c.start, c.stop) for c in claims if c] == [(0, 40), (40, 80), (80, 100)]
    assert plan.claim(40) is None
    middle = claims[1]
    assert middle
    plan.advance(middle, 15)
    plan.release(middle)
    again = plan.claim(40)
    assert again and (again.start, again.stop) == (55, 80)


def test_front_and_end_are_told_through_open_claims() -> None:
    plan = Plan(30)
    first, second = plan.claim(10), plan.claim(20)
    assert first and second
    plan.advance(second, 20)
    assert (plan.front, plan.is_complete) == (0, False)
    plan.advance(first, 10)
    assert (plan.front, plan.is_complete) == (30, True)


def test_a_claim_is_trimmed_so_that_others_get_work() -> None:
    plan = Plan(100)
    first = plan.claim(None)
    assert first
    plan.advance(first, 10)
    plan.trim(20)
    second = plan.claim(20)
    assert second and (first.stop, second.start, second.stop) == (30, 30, 50)


def test_the_tail_is_shared_out() -> None:
    plan = Plan(100)
    first = plan.claim(None)
    assert first
    plan.advance(first, 20)
    second = plan.split(10)
    assert second and (first.stop, second.start, second.stop) == (60, 60, 100)
    plan.advance(first, 25)
    plan.advance(second, 25)
    assert plan.split(10) is None


def test_a_claim_goes_on_as_long_as_nobody_else_has_what_follows() -> None:
    plan = Plan(100, [(60, 80)])
    first = plan.claim(20)
    assert first and plan.extend(first, 40) and first.stop == 40
    assert not plan.extend(first, 40)
    assert plan.extend(first, 100) and first.stop == 60
    assert not plan.extend(first, 100)
    second = plan.claim(10)
    assert second and (second.start, second.stop) == (80, 90)
    assert plan.extend(second, 1000) and second.stop == 100


def test_a_size_that_becomes_known_ends_the_claims() -> None:
    plan = Plan(None)
    claim = plan.claim(None)
    assert claim and claim.stop == UNBOUNDED and not plan.is_complete
    plan.advance(claim, 7)
    plan.end_at(7)
    assert claim.left_bytes == 0 and plan.is_complete


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 200))
def test_whatever_workers_do_no_byte_is_left_out_or_brought_twice(data: st.DataObject, total: int) -> None:
    plan, brought, claims = Plan(total), [0] * total, []
    for _ in range(60):
        if plan.is_complete:
            break
        act = data.draw(st.sampled_from(["claim", "split", "advance", "release", "trim", "extend"]))
        if act in ("claim", "split"):
            claim = plan.claim(data.draw(st.integers(1, 50))) if act == "claim" else plan.split(3)
            claims += [claim] if claim else []
        elif act == "trim":
            plan.trim(data.draw(st.integers(1, 30)))
        elif claims:
            claim = data.draw(st.sampled_from(claims))
            if act == "extend":
                plan.extend(claim, claim.stop + data.draw(st.integers(1, 50)))
            elif act == "release":
                plan.release(claim)
                claims.remove(claim)
            else:
                count = data.draw(st.integers(0, max(0, claim.left_bytes)))
                for byte in range(claim.position, claim.position + count):
                    brought[byte] += 1
                plan.advance(claim, count)
    while claim := plan.claim(None):
        for byte in range(claim.position, claim.stop):
            brought[byte] += 1
        plan.advance(claim, claim.left_bytes)
        plan.release(claim)
    for open_claim in claims:
        for byte in range(open_claim.position, open_claim.stop):
            brought[byte] += 1
        plan.advance(open_claim, open_claim.left_bytes)
    assert plan.is_complete and brought == [1] * total
