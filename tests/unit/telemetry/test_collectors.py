"""Collectors over looks at servers: slots, accepted lengths, flags, failures, and what is relayed."""

import pytest

from orchestrator.telemetry import Look
from orchestrator.telemetry.acceptance import AcceptedLengthCollector
from orchestrator.telemetry.exposition import read_exposition
from orchestrator.telemetry.flags import FlagsCollector
from orchestrator.telemetry.ledger import Account
from orchestrator.telemetry.relay import RelayCollector
from orchestrator.telemetry.scrapes import ScrapeCollector
from orchestrator.telemetry.slots import SlotCollector
from tests.unit.telemetry.exposed import PATCHED, STOCK, look, series, values

SLOT = {"model": "m", "slot": "0", "spec_type": "draft-mtp"}


class TestSlots:
    def test_counters_keep_their_values_and_gain_model_and_spec_type(self) -> None:
        found = values(SlotCollector(look(m=PATCHED)).collect())
        expected = {
            "predicted_tokens_total": 370,
            "predicted_seconds_total": 0.153654,
            "draft_tokens_total": 653,
            "accepted_tokens_total": 149,
            "relaxed_tokens_total": 3,
            "verification_steps_total": 217,
            "busy": 1,
        }
        assert {name: found[series(f"slipstream_slot_{name}", **SLOT)] for name in expected} == expected
        assert found[series("slipstream_slot_predicted_tokens_total", **SLOT | {"slot": "1"})] == 16

    def test_positions_are_rows_and_are_not_summed_into_the_total(self) -> None:
        found = values(SlotCollector(look(m=PATCHED)).collect())
        rows = {k: v for k, v in found.items() if k[0] == "slipstream_slot_accepted_tokens_per_position_total"}
        assert {dict(labels)["position"]: v for (_, labels), v in rows.items()} == {"0": 100, "1": 49}
        totals = [v for k, v in found.items() if k[0] == "slipstream_slot_accepted_tokens_total"]
        assert totals == [149] == [sum(rows.values())]

    def test_counters_of_a_server_that_is_down_stay_and_its_slots_are_not_idle(self) -> None:
        up = look(m=PATCHED)
        found = values(SlotCollector(Look(counters=up.counters)).collect())
        assert found[series("slipstream_slot_draft_tokens_total", **SLOT)] == 653
        assert not [name for name, _ in found if name == "slipstream_slot_busy"]

    @pytest.mark.parametrize("page", ["", STOCK])
    def test_no_series_where_the_server_gives_none(self, page: str) -> None:
        assert values(SlotCollector(look(m=page)).collect()) == {}

    def test_two_servers_share_a_family(self) -> None:
        families = list(SlotCollector(look(a=PATCHED, b=PATCHED)).collect())
        assert len({family.name for family in families}) == len(families)
        busy = [k for k in values(families) if k[0] == "slipstream_slot_busy"]
        assert {dict(labels)["model"] for _, labels in busy} == {"a", "b"}

    def test_a_slot_series_of_another_kind_is_left_out(self) -> None:
        page = '# TYPE llamacpp:slot_busy_total counter\nllamacpp:slot_busy_total{slot="0"} 1\n'
        page += '# TYPE llamacpp:slot_draft_tokens_total gauge\nllamacpp:slot_draft_tokens_total{slot="0"} 1\n'
        assert values(SlotCollector(look(m=page)).collect()) == {}


class TestAcceptedLength:
    def test_buckets_come_from_the_positions(self) -> None:
        # 217 steps: 100 of them accepted at least one token, 49 at least two.
        found = values(AcceptedLengthCollector(look(m=PATCHED)).collect())
        labels = {"model": "m", "spec_type": "draft-mtp"}

        def bucket(bound: str) -> float:
            return found[series("slipstream_accepted_length_tokens_bucket", **labels, le=bound)]

        assert [bucket(le) for le in ("0.0", "1.0", "2.0", "64.0", "+Inf")] == [117, 168, 217, 217, 217]
        assert found[series("slipstream_accepted_length_tokens_count", **labels)] == 217
        assert found[series("slipstream_accepted_length_tokens_sum", **labels)] == 149

    def test_slots_are_added(self) -> None:
        other = PATCHED.replace('slot="0"', 'slot="7"')
        both = {
            **look(m=PATCHED).counters[Account("m", "draft-mtp")],
            **look(m=other).counters[Account("m", "draft-mtp")],
        }
        found = values(AcceptedLengthCollector(Look(counters={Account("m", "draft-mtp"): both})).collect())
        labels = {"model": "m", "spec_type": "draft-mtp"}
        assert found[series("slipstream_accepted_length_tokens_bucket", **labels, le="0.0")] == 234
        assert found[series("slipstream_accepted_length_tokens_count", **labels)] == 434

    def test_there_is_none_where_nothing_can_be_drafted(self) -> None:
        plain = {Account("m", "none"): look(m=PATCHED).counters[Account("m", "draft-mtp")]}
        assert values(AcceptedLengthCollector(Look(counters=plain)).collect()) == {}

    def test_buckets_never_fall_whatever_a_server_says(self) -> None:
        page = PATCHED.replace('position="1"} 49', 'position="1"} 5000').replace(" 100\n", " 218\n")
        found = AcceptedLengthCollector(look(m=page)).collect()
        counts = [s.value for family in found for s in family.samples if s.name.endswith("_bucket")]
        assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 217


def test_sums_by_flags() -> None:
    sums = ({"draft_tokens": 4.0, "predicted_seconds": 0.5}, {"draft_tokens": 9.0})
    assert values(FlagsCollector(Look(flags={"m": sums, "n": sums[:1]})).collect()) == {
        series("slipstream_flags_draft_tokens", model="m", flags="current"): 4,
        series("slipstream_flags_predicted_seconds", model="m", flags="current"): 0.5,
        series("slipstream_flags_draft_tokens", model="m", flags="previous"): 9,
        series("slipstream_flags_draft_tokens", model="n", flags="current"): 4,
        series("slipstream_flags_predicted_seconds", model="n", flags="current"): 0.5,
    }


def test_looks_in_vain() -> None:
    found = values(ScrapeCollector(Look(failures={"m": 2, "n": 0})).collect())
    assert found == {series("slipstream_server_scrape_failures_total", model=m): n for m, n in (("m", 2), ("n", 0))}


class TestRelay:
    def test_series_keep_their_names_and_gain_the_model(self) -> None:
        found = values(RelayCollector(look(a=PATCHED, b=STOCK)).collect())
        assert found[series("llamacpp:tokens_predicted_total", model="a")] == 386
        assert found[series("llamacpp:requests_processing", model="a")] == 1
        per_position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
        assert found[series(per_position, model="b", position="0")] == 12

    def test_slot_series_are_not_told_twice(self) -> None:
        found = values(RelayCollector(look(m=PATCHED)).collect())
        assert not [name for name, _ in found if "slot_" in name]

    def test_a_model_label_of_the_server_does_not_win(self) -> None:
        found = values(RelayCollector(look(m='llamacpp:x_total{model="other"} 1\n')).collect())
        assert list(found) == [series("llamacpp:x_total", model="m")]

    def test_kinds(self) -> None:
        families = {family.name: family for family in RelayCollector(look(m=STOCK + "llamacpp:odd 1\n")).collect()}
        kinds = {name: family.type for name, family in families.items()}
        assert kinds["llamacpp:prompt_tokens"] == "counter"
        assert (kinds["llamacpp:n_tokens_max"], kinds["llamacpp:odd"]) == ("gauge", "unknown")
        assert families["llamacpp:n_tokens_max"].documentation == "Largest observed n_tokens."

    def test_counters_of_both_ways_to_speculate_are_added(self) -> None:
        page = read_exposition(PATCHED.encode()).counters
        both = Look(counters={Account("m", "none"): page, Account("m", "draft-mtp"): page})
        assert values(RelayCollector(both).collect()) == {series("llamacpp:tokens_predicted_total", model="m"): 772}

    def test_servers_that_do_not_agree_on_a_kind(self) -> None:
        counter = "# TYPE llamacpp:x_total counter\nllamacpp:x_total 1\n"
        families = list(RelayCollector(look(a=counter, b=counter.replace("counter", "gauge"))).collect())
        assert [family.type for family in families] == ["counter"]
        assert values(families) == {series("llamacpp:x_total", model="a"): 1}
