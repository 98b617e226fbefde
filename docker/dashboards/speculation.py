"""Speculation: whether drafting pays, per model, slot and position, and before and after a change of flags."""

from dashboards.common import ALERTS, EVENTS, HOST_OF_MODEL, MODEL_ON_HOST, SPEC_TYPE
from dashboards.common import SLOT as SLOT_VARIABLE
from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.promql import MODEL, RANGE, RATE, SLOT, quotient, rate, total
from dashboards.views import (
    COUNT,
    PER_SECOND,
    RATIO,
    TOKENS_PER_SECOND,
    gauges,
    heatmap,
    lines,
    stat,
    table,
)

_PREDICTED = "slipstream_slot_predicted_tokens_total"
_SECONDS = "slipstream_slot_predicted_seconds_total"
_DRAFT = "slipstream_slot_draft_tokens_total"
_ACCEPTED = "slipstream_slot_accepted_tokens_total"
_RELAXED = "slipstream_slot_relaxed_tokens_total"
_STEPS = "slipstream_slot_verification_steps_total"
_POSITIONS = "slipstream_slot_accepted_tokens_per_position_total"
_BY_MODEL, _BY_SLOT = "model", "model, slot"
_SLOT_LEGEND = "{{model}} · slot {{slot}}"

ACCEPTANCE_MEANS = "Accepted of drafted tokens. Not generated tokens: the target's own do not count."
LENGTH_MEANS = "Tokens that one verification step yields: 1 of the target's own, and the accepted ones."
SPEED_MEANS = "Tokens per second of generating, prompts and idle time left out: how fast an answer comes, per slot."
STEPS_MEANS = "Drafts that the target verified, per second of the clock."
SHARE_MEANS = "Accepted of all generated tokens: how much of the output came from drafts."
RELAXED_MEANS = "Of the accepted tokens, those that were not the target's own choice (relaxed acceptance)."


def _ratio(numerator: str, denominator: str, by: str = "", window: str = RATE) -> str:
    is_total = window == RANGE
    # llama-server's clock starts with the first token of an answer: a window that holds no more than that has a
    # microsecond of generating, and no speed.
    least = "0" if denominator != _SECONDS else "0.0001" if is_total else "0.000001"
    return quotient(
        total(numerator, by, SLOT, window) if is_total else rate(numerator, by, SLOT, window),
        total(denominator, by, SLOT, window) if is_total else rate(denominator, by, SLOT, window),
        least,
    )


def _over_time(title: str, means: str, expr: str, legend: str, unit: str, top: float | None = None) -> Panel:
    return lines(title, means, (Query(expr, legend),), unit, width=8, top=top)


_STATS = Row(
    "The selected range",
    (
        stat("Acceptance", ACCEPTANCE_MEANS, _ratio(_ACCEPTED, _DRAFT, window=RANGE), RATIO, decimals=1),
        stat("Acceptance length", LENGTH_MEANS, f"1 + {_ratio(_ACCEPTED, _STEPS, window=RANGE)}", COUNT, decimals=2),
        stat(
            "Generation speed",
            SPEED_MEANS,
            _ratio(_PREDICTED, _SECONDS, window=RANGE),
            TOKENS_PER_SECOND,
            decimals=1,
        ),
        stat(
            "Drafts",
            f"{STEPS_MEANS} Over the whole range, idle time included.",
            f"{rate(_STEPS, select=SLOT, window=RANGE)} > 0",
            PER_SECOND,
            decimals=2,
        ),
        stat("Output from drafts", SHARE_MEANS, _ratio(_ACCEPTED, _PREDICTED, window=RANGE), RATIO, decimals=1),
        stat("Relaxed", RELAXED_MEANS, _ratio(_RELAXED, _ACCEPTED, window=RANGE), RATIO, decimals=1),
    ),
)
_MODELS = Row(
    "Per model",
    (
        _over_time(
            "Acceptance by model", ACCEPTANCE_MEANS, _ratio(_ACCEPTED, _DRAFT, _BY_MODEL), "{{model}}", RATIO, 1
        ),
        _over_time(
            "Acceptance length by model",
            LENGTH_MEANS,
            f"1 + {_ratio(_ACCEPTED, _STEPS, _BY_MODEL)}",
            "{{model}}",
            COUNT,
        ),
        _over_time(
            "Generation speed by model",
            SPEED_MEANS,
            _ratio(_PREDICTED, _SECONDS, _BY_MODEL),
            "{{model}}",
            TOKENS_PER_SECOND,
        ),
        _over_time(
            "Tokens out by model",
            "Tokens generated per second of the clock, all slots together, idle time included.",
            rate(_PREDICTED, _BY_MODEL, SLOT),
            "{{model}}",
            TOKENS_PER_SECOND,
        ),
        _over_time("Drafts by model", STEPS_MEANS, rate(_STEPS, _BY_MODEL, SLOT), "{{model}}", PER_SECOND),
        lines(
            "Output from drafts, and relaxed, by model",
            f"{SHARE_MEANS} {RELAXED_MEANS}",
            (
                Query(_ratio(_ACCEPTED, _PREDICTED, _BY_MODEL), "{{model}}: from drafts"),
                Query(_ratio(_RELAXED, _ACCEPTED, _BY_MODEL), "{{model}}: relaxed"),
            ),
            RATIO,
            width=8,
            top=1,
        ),
    ),
)
_SLOTS = Row(
    "Per slot",
    (
        _over_time(
            "Acceptance by slot",
            f"{ACCEPTANCE_MEANS} A slot near 0 % beside a good slot 0 is a fault: see SlipstreamSlotWithoutDrafts.",
            _ratio(_ACCEPTED, _DRAFT, _BY_SLOT),
            _SLOT_LEGEND,
            RATIO,
            1,
        ),
        _over_time(
            "Generation speed by slot",
            SPEED_MEANS,
            _ratio(_PREDICTED, _SECONDS, _BY_SLOT),
            _SLOT_LEGEND,
            TOKENS_PER_SECOND,
        ),
        lines(
            "Slots at work",
            "How many slots generate or read a prompt.",
            (Query(f"sum by (model) (slipstream_slot_busy{{{SLOT}}})", "{{model}}"),),
            COUNT,
            no_value="no server",
            width=8,
        ),
        table(
            "Slots in the selected range",
            "Every figure is of the selected range alone. A slot that drafted nothing has no acceptance and no length.",
            {
                "Tokens": Query(total(_PREDICTED, "model, spec_type, slot", SLOT), "", True, "table"),
                "Drafted": Query(total(_DRAFT, "model, spec_type, slot", SLOT), "", True, "table"),
                "Accepted": Query(total(_ACCEPTED, "model, spec_type, slot", SLOT), "", True, "table"),
                "Acceptance": Query(_ratio(_ACCEPTED, _DRAFT, "model, spec_type, slot", RANGE), "", True, "table"),
                "Length": Query(f"1 + {_ratio(_ACCEPTED, _STEPS, 'model, spec_type, slot', RANGE)}", "", True, "table"),
                "Speed": Query(_ratio(_PREDICTED, _SECONDS, "model, spec_type, slot", RANGE), "", True, "table"),
                "From drafts": Query(_ratio(_ACCEPTED, _PREDICTED, "model, spec_type, slot", RANGE), "", True, "table"),
                "Relaxed": Query(_ratio(_RELAXED, _ACCEPTED, "model, spec_type, slot", RANGE), "", True, "table"),
            },
            {"Acceptance": RATIO, "Speed": TOKENS_PER_SECOND, "From drafts": RATIO, "Relaxed": RATIO},
            {"model": "Model", "spec_type": "Speculation", "slot": "Slot"},
            numbers=("slot",),
        ),
    ),
)
_DRAFTS = Row(
    "Per position, and how long drafts last",
    (
        gauges(
            "Acceptance by position",
            "Of the verification steps in the selected range, those whose draft was accepted up to and with this "
            "position, counted from 0. Where it drops to near 0, a shorter draft costs nothing.",
            Query(
                f"{total(_POSITIONS, 'model, position', SLOT)}"
                f" / on (model) group_left () ({total(_STEPS, 'model', SLOT)} > 0)",
                "{{model}} · {{position}}",
                is_instant=True,
            ),
            RATIO,
            top=1,
            order=("model", "position"),
        ),
        lines(
            "Acceptance by position over time",
            "Share of the verification steps whose draft was accepted up to and with this position, from 0.",
            (
                Query(
                    f"{rate(_POSITIONS, 'model, position', SLOT)}"
                    f" / on (model) group_left () ({rate(_STEPS, 'model', SLOT)} > 0)",
                    "{{model}} · {{position}}",
                ),
            ),
            RATIO,
            width=8,
            top=1,
        ),
        heatmap(
            "Accepted tokens of a step",
            "How many drafted tokens each verification step accepted, over time; the topmost bucket in use is the "
            "longest draft that was taken whole.",
            Query(
                total("slipstream_accepted_length_tokens_bucket", "le", f'{MODEL}, spec_type=~"$spec_type"', RATE),
                "{{le}}",
                format="heatmap",
            ),
            COUNT,
        ),
    ),
)


def _of_flags(numerator: str, denominator: str, by: str = "model, flags", which: str = "") -> str:
    select = f'{MODEL}, flags="{which}"' if which else MODEL
    return quotient(
        f"sum by ({by}) (slipstream_flags_{numerator}{{{select}}})",
        f"sum by ({by}) (slipstream_flags_{denominator}{{{select}}})",
    )


def _speed_of(which: str) -> str:
    return f"({_of_flags('predicted_tokens', 'predicted_seconds', 'model', which)})"


_FLAGS = Row(
    "Whether a change of flags paid",
    (
        table(
            "Before and after the last change of flags",
            "Since a model's flags last changed (current), and under the flags before (previous), whatever range is "
            "selected. The vertical marks on the graphs show when.",
            {
                "Speed": Query(_of_flags("predicted_tokens", "predicted_seconds"), "", True, "table"),
                "Acceptance": Query(_of_flags("accepted_tokens", "draft_tokens"), "", True, "table"),
                "Length": Query(f"1 + {_of_flags('accepted_tokens', 'verification_steps')}", "", True, "table"),
                "Tokens": Query(
                    f"sum by (model, flags) (slipstream_flags_predicted_tokens{{{MODEL}}})", "", True, "table"
                ),
            },
            {"Speed": TOKENS_PER_SECOND, "Acceptance": RATIO},
            {"model": "Model", "flags": "Flags"},
            width=16,
        ),
        gauges(
            "Speed now against the flags before",
            "Generation speed under the current flags divided by that under the flags before: above 1 the change paid. "
            "Traffic that changed too is in it; `bench` compares on equal prompts.",
            Query(quotient(_speed_of("current"), _speed_of("previous")), "{{model}}", is_instant=True),
            COUNT,
        ),
        table(
            "Bench",
            "The bench result kept for each model, as long as it is of the flags that run now: speed with drafts "
            "against plain decoding, and the acceptance length from which drafting pays.",
            {
                "Speedup": Query(
                    f"max by (model, spec_type) (slipstream_bench_speedup_ratio{{{MODEL}}})", "", True, "table"
                ),
                "Pays from length": Query(
                    f"max by (model, spec_type) (slipstream_bench_break_even_tokens{{{MODEL}}})", "", True, "table"
                ),
                "Length in the range": Query(
                    f"1 + {_ratio(_ACCEPTED, _STEPS, 'model, spec_type', RANGE)}", "", True, "table"
                ),
                "Measured": Query(
                    f"max by (model, spec_type) (slipstream_bench_timestamp_seconds{{{MODEL}}}) * 1000",
                    "",
                    True,
                    "table",
                ),
            },
            {"Measured": "dateTimeAsIso"},
            {"model": "Model", "spec_type": "Speculation"},
            no_value="not measured",
        ),
    ),
)

SPECULATION = Dashboard(
    "speculation",
    "Slipstream: Speculation",
    "Whether drafting pays: acceptance, speed and share of the output, per model, slot and position.",
    (_STATS, _MODELS, _SLOTS, _DRAFTS, _FLAGS),
    (HOST_OF_MODEL, SPEC_TYPE, MODEL_ON_HOST, SLOT_VARIABLE),
    (*EVENTS, ALERTS),
)
