"""What answers add up to, and the ratios of it; None is "no data", never 0 % or 100 %."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.integration.observability.asking import Answer
from tests.integration.observability.known import KINDS, N_MAX, Known

Labels = frozenset[tuple[str, str]]
Values = dict[Labels, float]
Expect = Callable[[Known], Values]
WINDOW_OF_RULES_SECONDS = 300.0


@dataclass(frozen=True)
class Figures:
    """Sums over answers of one model, one slot or all; the definitions are those of docs/dashboards.md."""

    answers: tuple[Answer, ...]

    def total(self, name: str) -> float:
        """Sum of one of llama-server's `timings`; absent counts as 0."""
        return sum(answer.timings.get(name, 0.0) for answer in self.answers)

    @property
    def predicted_tokens(self) -> float:
        return self.total("predicted_n")

    @property
    def predicted_seconds(self) -> float:
        return self.total("predicted_ms") / 1000

    @property
    def draft_tokens(self) -> float:
        return self.total("draft_n")

    @property
    def accepted_tokens(self) -> float:
        return self.total("draft_n_accepted")

    @property
    def relaxed_tokens(self) -> float:
        return self.total("draft_n_relaxed")

    @property
    def verification_steps(self) -> float:
        return self.total("draft_n_steps")

    @property
    def acceptance(self) -> float | None:
        return ratio(self.accepted_tokens, self.draft_tokens)

    @property
    def acceptance_length(self) -> float | None:
        accepted = ratio(self.accepted_tokens, self.verification_steps)
        return None if accepted is None else 1 + accepted

    @property
    def generation_tokens_per_second(self) -> float | None:
        return ratio(self.predicted_tokens, self.predicted_seconds)

    @property
    def drafted_share(self) -> float | None:
        return ratio(self.accepted_tokens, self.predicted_tokens)

    @property
    def relaxed_share(self) -> float | None:
        return ratio(self.relaxed_tokens, self.accepted_tokens)

    def accepted_at(self, position: int) -> float:
        """Tokens accepted at a position of the draft: steps that accepted more than so many."""
        steps = (answer.accepted_by_step.items() for answer in self.answers)
        return sum(count for one in steps for accepted, count in one if accepted > position)

    def acceptance_at(self, position: int) -> float | None:
        """Share of the steps that accepted the token at a position."""
        return ratio(self.accepted_at(position), self.verification_steps)


Take = Callable[[Figures], float | None]
TakeAt = Callable[[Figures, int], float | None]


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def labelled(**labels: str | int) -> Labels:
    return frozenset((name, str(value)) for name, value in labels.items())


def values(pairs: Iterable[tuple[Labels, float | None]]) -> Values:
    """Without what has no data."""
    return {labels: value for labels, value in pairs if value is not None}


def slots() -> list[tuple[str, int]]:
    return [(model, slot) for model, kind in KINDS.items() for slot in range(kind.slots)]


def by_slot(take: Take, *, spec_type: bool = True) -> Expect:
    """A value of each slot."""

    def expect(known: Known) -> Values:
        return values(
            (labelled(model=model, slot=slot) | _type(model, spec_type), take(of(known, model, slot)))
            for model, slot in slots()
        )

    return expect


def by_model(take: Take, *, spec_type: bool = True) -> Expect:
    """A value of each model."""

    def expect(known: Known) -> Values:
        return values((labelled(model=model) | _type(model, spec_type), take(of(known, model))) for model in KINDS)

    return expect


def of_all(take: Take) -> Expect:
    """One value, of all models together."""

    def expect(known: Known) -> Values:
        return values([(labelled(), take(Figures(tuple(known.answers))))])

    return expect


def by_slot_and_position(take: TakeAt) -> Expect:
    """A value of each slot and each position of its drafts."""

    def expect(known: Known) -> Values:
        return values(
            (labelled(model=model, slot=slot, position=at) | _type(model), take(of(known, model, slot), at))
            for model, slot in slots()
            for at in positions(model)
        )

    return expect


def by_model_and_position(take: TakeAt, *, spec_type: bool = True) -> Expect:
    """A value of each model and each position of its drafts."""

    def expect(known: Known) -> Values:
        return values(
            (labelled(model=model, position=at) | _type(model, spec_type), take(of(known, model), at))
            for model in KINDS
            for at in positions(model)
        )

    return expect


def of(known: Known, model: str, slot: int | None = None) -> Figures:
    return Figures(tuple(a for a in known.answers if a.model == model and slot in (None, a.slot)))


def _type(model: str, is_wanted: bool = True) -> Labels:
    return labelled(spec_type=KINDS[model].spec_type) if is_wanted else labelled()


def positions(model: str) -> range:
    """Of a draft of that model."""
    return range(N_MAX if KINDS[model].spec_type != "none" else 0)


def per_second(name: str, window_seconds: float = WINDOW_OF_RULES_SECONDS) -> Take:
    """`rate()` of a counter over a window that all traffic lies in: the whole of it by the length of the window."""
    return lambda figures: getattr(figures, name) / window_seconds


def nothing(_: Known) -> Values:
    """No series at all."""
    return {}


def differences(found: Mapping[Labels, float], expected: Mapping[Labels, float], tolerance: float) -> list[str]:
    """Every series too much, missing or wrong by more than `tolerance` of the expected value."""
    wrong = [f"missing {dict(labels)}, expected {expected[labels]:g}" for labels in expected.keys() - found.keys()]
    wrong += [f"not expected: {dict(labels)} {found[labels]:g}" for labels in found.keys() - expected.keys()]
    for labels in expected.keys() & found.keys():
        if not abs(found[labels] - expected[labels]) <= tolerance * abs(expected[labels]) + 1e-9:
            wrong.append(f"{dict(labels)}: {found[labels]:g}, expected {expected[labels]:g}")
    return sorted(wrong)
