"""What the dashboard of speculation is to say about the known traffic."""

from collections.abc import Callable
from operator import attrgetter

from tests.integration.observability.figures import (
    Expect,
    Figures,
    Take,
    Values,
    by_model,
    by_model_and_position,
    by_slot,
    labelled,
    of_all,
    values,
)
from tests.integration.observability.known import BENCH, KINDS, Known
from tests.integration.observability.places import Table, each, per_window, rate_by_model


def _steps_by_accepted(known: Known) -> Values:
    """Cumulative: how many steps accepted at most so many tokens."""
    bounds = {
        dict(labels)["le"] for name, labels in known.after.values if name == "slipstream_accepted_length_tokens_bucket"
    }
    return {
        labelled(le=le): float(
            sum(
                n
                for answer in known.answers
                for accepted, n in answer.accepted_by_step.items()
                if accepted <= float(le)
            )
        )
        for le in bounds
    }


def of_flags(take: Take) -> Expect:
    """A value of each model under its flags of now, and under those before where they were changed."""

    def expect(known: Known) -> Values:
        periods = {(answer.model, answer.flags) for answer in known.answers}
        return values(
            (
                labelled(model=model, flags=flags),
                take(Figures(tuple(a for a in known.answers if (a.model, a.flags) == (model, flags)))),
            )
            for model, flags in periods
        )

    return expect


def _speed_against_before(known: Known) -> Values:
    speeds = of_flags(attrgetter("generation_tokens_per_second"))(known)
    now, before = (speeds[labelled(model="strict", flags=flags)] for flags in ("current", "previous"))
    return {labelled(model="strict"): now / before}


def bench(value: Callable[[Known], float]) -> Expect:
    """Of the one model whose measurement is kept."""
    return lambda known: {labelled(model="relaxed", spec_type="draft-mtp"): value(known)}


def _speedup(_: Known) -> float:
    return float(BENCH["plain"]["predicted_seconds"] / BENCH["drafted"]["predicted_seconds"])


def _break_even(_: Known) -> float:
    """All 100 further tokens came of the 40 steps, and a plain one takes 10 ms."""
    return float(BENCH["drafted"]["predicted_seconds"] / 40 / 0.01)


SPECULATION: Table = {
    ("Acceptance", "A"): of_all(attrgetter("acceptance")),
    ("Acceptance length", "A"): of_all(attrgetter("acceptance_length")),
    ("Generation speed", "A"): of_all(attrgetter("generation_tokens_per_second")),
    ("Drafts", "A"): lambda known: of_all(per_window(known, "verification_steps"))(known),
    ("Output from drafts", "A"): of_all(attrgetter("drafted_share")),
    ("Relaxed", "A"): of_all(attrgetter("relaxed_share")),
    ("Acceptance by model", "A"): by_model(attrgetter("acceptance"), spec_type=False),
    ("Acceptance length by model", "A"): by_model(attrgetter("acceptance_length"), spec_type=False),
    ("Generation speed by model", "A"): by_model(attrgetter("generation_tokens_per_second"), spec_type=False),
    ("Tokens out by model", "A"): rate_by_model("predicted_tokens"),
    ("Drafts by model", "A"): rate_by_model("verification_steps"),
    ("Output from drafts, and relaxed, by model", "A"): by_model(attrgetter("drafted_share"), spec_type=False),
    ("Output from drafts, and relaxed, by model", "B"): by_model(attrgetter("relaxed_share"), spec_type=False),
    ("Acceptance by slot", "A"): by_slot(attrgetter("acceptance"), spec_type=False),
    ("Generation speed by slot", "A"): by_slot(attrgetter("generation_tokens_per_second"), spec_type=False),
    ("Slots at work", "A"): each(KINDS, 0),
    ("Slots in the selected range", "A"): by_slot(attrgetter("predicted_tokens")),
    ("Slots in the selected range", "B"): by_slot(attrgetter("draft_tokens")),
    ("Slots in the selected range", "C"): by_slot(attrgetter("accepted_tokens")),
    ("Slots in the selected range", "D"): by_slot(attrgetter("acceptance")),
    ("Slots in the selected range", "E"): by_slot(attrgetter("acceptance_length")),
    ("Slots in the selected range", "F"): by_slot(attrgetter("generation_tokens_per_second")),
    ("Slots in the selected range", "G"): by_slot(attrgetter("drafted_share")),
    ("Slots in the selected range", "H"): by_slot(attrgetter("relaxed_share")),
    ("Acceptance by position", "A"): by_model_and_position(Figures.acceptance_at, spec_type=False),
    ("Acceptance by position over time", "A"): by_model_and_position(Figures.acceptance_at, spec_type=False),
    ("Accepted tokens of a step", "A"): _steps_by_accepted,
    ("Before and after the last change of flags", "A"): of_flags(attrgetter("generation_tokens_per_second")),
    ("Before and after the last change of flags", "B"): of_flags(attrgetter("acceptance")),
    ("Before and after the last change of flags", "C"): of_flags(attrgetter("acceptance_length")),
    ("Before and after the last change of flags", "D"): of_flags(attrgetter("predicted_tokens")),
    ("Speed now against the flags before", "A"): _speed_against_before,
    ("Bench", "A"): bench(_speedup),
    ("Bench", "B"): bench(_break_even),
    ("Bench", "C"): by_model(attrgetter("acceptance_length")),
    ("Bench", "D"): bench(lambda known: 1000 * known.kept_at),
}
