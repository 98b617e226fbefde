"""Counters of models over servers that come and go."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.telemetry.ledger import Account, Ledger

TOKENS = 'llamacpp:slot_draft_tokens_total{slot="0"}'
OTHER = 'llamacpp:slot_draft_tokens_total{slot="1"}'
PLAIN, MTP = Account("m", "none"), Account("m", "draft-mtp")


def tokens(ledger: Ledger, account: Account = MTP) -> float:
    return ledger.sums()[account][TOKENS]


def test_what_was_counted_before_it_took_requests_is_nobodys() -> None:
    ledger = Ledger()
    ledger.begin(1, MTP, "flags")
    ledger.count(1, {TOKENS: 40.0})
    assert tokens(ledger) == 0
    ledger.count(1, {TOKENS: 47.0, OTHER: 5.0})
    assert ledger.sums() == {MTP: {TOKENS: 7.0, OTHER: 5.0}}


def test_a_restart_goes_on_where_it_was() -> None:
    ledger = Ledger()
    for number, (first, last) in enumerate([(16.0, 116.0), (16.0, 20.0), (0.0, 0.0)]):
        ledger.begin(number, MTP, "flags")
        ledger.count(number, {TOKENS: first})
        ledger.count(number, {TOKENS: last})
        ledger.end(number)
        ledger.count(number, {TOKENS: 1e9})
    assert tokens(ledger) == 104


def test_two_servers_of_a_model_are_both_counted() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.begin(number, MTP, "flags")
        ledger.count(number, {TOKENS: 0.0})
    for value in (1.0, 5.0, 9.0):
        ledger.count(1, {TOKENS: value})
        ledger.count(2, {TOKENS: 2 * value})
    assert tokens(ledger) == 27


def test_a_counter_that_fell_has_begun_anew() -> None:
    ledger = Ledger()
    ledger.begin(1, MTP, "flags")
    for value in (100.0, 110.0, 3.0, 4.0):
        ledger.count(1, {TOKENS: value})
    assert tokens(ledger) == 14


def test_what_is_no_number_of_events_is_left_out() -> None:
    ledger = Ledger()
    ledger.begin(1, MTP, "flags")
    for value in (1.0, float("inf"), float("nan"), -5.0, 3.0):
        ledger.count(1, {TOKENS: value})
    assert tokens(ledger) == 2


def test_another_way_to_speculate_has_series_of_its_own() -> None:
    ledger = Ledger()
    for number, account in enumerate((MTP, PLAIN)):
        ledger.begin(number, account, account.spec_type)
        ledger.count(number, {TOKENS: 0.0})
        ledger.count(number, {TOKENS: 8.0 + number})
        assert ledger.current() == {"m": account}
    assert ledger.sums() == {MTP: {TOKENS: 8.0}, PLAIN: {TOKENS: 9.0}}


def test_sums_with_the_flags_of_now_and_of_before() -> None:
    ledger = Ledger()

    def run(number: int, flags: str, count: float) -> None:
        ledger.begin(number, MTP, flags)
        ledger.count(number, {TOKENS: 0.0, OTHER: 0.0})
        ledger.count(number, {TOKENS: count, OTHER: count})

    run(1, "a", 10.0)
    assert ledger.flags() == {"m": ({"draft_tokens": 20.0},)}
    run(2, "a", 1.0)
    assert ledger.flags() == {"m": ({"draft_tokens": 22.0},)}
    run(3, "b", 4.0)
    # One with the earlier flags still drains.
    ledger.count(2, {TOKENS: 2.0})
    assert ledger.flags() == {"m": ({"draft_tokens": 8.0}, {"draft_tokens": 23.0})}
    run(4, "a", 3.0)
    assert ledger.flags() == {"m": ({"draft_tokens": 6.0}, {"draft_tokens": 8.0})}
    assert tokens(ledger) == 10 + 2 + 4 + 3


def test_models_that_are_gone_are_forgotten_and_begin_anew() -> None:
    ledger = Ledger()
    ledger.begin(1, MTP, "flags")
    ledger.count(1, {TOKENS: 5.0})
    ledger.count(1, {TOKENS: 6.0})
    ledger.end(1)
    ledger.keep_only({"other"})
    assert (ledger.sums(), ledger.flags(), ledger.current()) == ({}, {}, {})
    ledger.begin(2, MTP, "flags")
    for value in (5.0, 7.0):
        ledger.count(2, {TOKENS: value})
    assert tokens(ledger) == 2


@dataclass
class Child:
    """A server that counts, and what of it the ledger should have seen."""

    number: int
    account: Account
    counted: float
    seen: float = field(default=0.0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_happens_nothing_falls_nothing_is_lost_that_was_read(data: st.DataObject) -> None:
    ledger = Ledger()
    children: list[Child] = []
    expected = {account: 0.0 for account in (PLAIN, MTP)}
    shown = dict(expected)
    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(("begin", "work", "read", "read", "end", "kill")))
        if step == "begin" or not children:
            # Warm-up, or what it did before we were restarted.
            child = Child(number, data.draw(st.sampled_from((PLAIN, MTP))), data.draw(st.integers(0, 50)))
            ledger.begin(child.number, child.account, "flags")
            ledger.count(child.number, {TOKENS: child.counted})
            child.seen = child.counted
            children.append(child)
        child = data.draw(st.sampled_from(children))
        if step == "work":
            child.counted += data.draw(st.integers(0, 1000))
        if step in ("read", "end"):
            ledger.count(child.number, {TOKENS: child.counted})
            expected[child.account] += child.counted - child.seen
            child.seen = child.counted
        if step in ("end", "kill"):
            ledger.end(child.number)
            children.remove(child)
        now = {account: sums[TOKENS] for account, sums in ledger.sums().items()}
        assert now == {account: expected[account] for account in now}
        assert all(value >= shown[account] for account, value in now.items())
        shown |= now
