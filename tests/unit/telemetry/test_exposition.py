"""Reading llama-server's exposition: what the client library's parser reads, or one kind of error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import Code, SlipstreamError
from orchestrator.telemetry.exposition import Family, canonical, parts, read_exposition, written
from tests.unit.telemetry.exposed import PATCHED, STOCK, values

LABELS = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(max_size=8), max_size=3)


def test_it_reads_what_the_client_library_reads() -> None:
    read = read_exposition(PATCHED.encode())
    families = list(text_string_to_metric_families(PATCHED))
    found = ((*parts(series), value) for series, value in {**read.counters, **read.gauges}.items())
    assert {(name, frozenset(labels.items())): value for name, labels, value in found} == values(families)
    assert {family.text for family in read.families.values()} == {family.documentation for family in families}


def test_counters_are_apart_from_gauges() -> None:
    read = read_exposition(PATCHED.encode())
    assert set(read.gauges) == {"llamacpp:requests_processing", *(f'llamacpp:slot_busy{{slot="{n}"}}' for n in (0, 1))}
    assert read.counters['llamacpp:slot_draft_tokens_total{slot="0"}'] == 653
    assert read.families["llamacpp:slot_busy"] == Family("gauge", "1 if the slot is processing a request, else 0")


def test_a_maximum_that_is_called_a_counter_is_none() -> None:
    read = read_exposition(STOCK.encode())
    assert read.families["llamacpp:n_tokens_max"].kind == "counter"
    assert "llamacpp:n_tokens_max" in read.gauges


def test_only_the_servers_own_namespace_counts() -> None:
    read = read_exposition(b'# TYPE python_info gauge\nslipstream_server_up{model="m"} 0\npython_info 1\n')
    assert (read.counters, read.gauges) == ({}, {})


@pytest.mark.parametrize(
    "page",
    [
        b"<html>oops</html>",
        b"llamacpp:x_total{",
        b'llamacpp:x_total{slot="0} 1',
        b'llamacpp:x_total{slot="0",slot="1"} 1',
        b'llamacpp:x_total{slot="\\q"} 1',
        b"llamacpp:x_total one",
        b"llamacpp:x_total 1_000",
        b"llamacpp:x_total",
        b"llamacpp:x 1 1700000000",
        b"# TYPE llamacpp:x nonsense\nllamacpp:x 1",
        b"# TYPE",
        b"\0\1\2",
        b"\xff\xfe",
        b"{}",
        b'{"error": {"code": 503}}',
        b"} {",
        b"a" * (5 << 20),
    ],
)
def test_garbage_is_one_kind_of_error(page: bytes) -> None:
    with pytest.raises(SlipstreamError, match="not readable") as caught:
        read_exposition(page)
    assert caught.value.code is Code.UPSTREAM_FAILED
    assert len(caught.value.message) < 500


@settings(max_examples=40, deadline=None)
@given(LABELS, st.floats(allow_nan=False))
def test_what_is_written_is_read(labels: dict[str, str], value: float) -> None:
    series = written("llamacpp:x", labels)
    assert read_exposition(f"# a comment\n{series} {value!r}\n".encode()).gauges == {series: value}
    assert parts(series) == ("llamacpp:x", labels)


def test_a_name_that_begins_another_comes_before_it() -> None:
    series = written("llamacpp:x", {"_0": "", "_": ""})
    assert canonical(series) == ("llamacpp:x", series) == ("llamacpp:x", 'llamacpp:x{_="",_0=""}')


def test_labels_in_another_order_are_the_same_series() -> None:
    one, other = 'llamacpp:x{a="1",b="}{,"}', 'llamacpp:x{b="}{,",a="1",}'
    assert canonical(other) == canonical(one) == ("llamacpp:x", one)
