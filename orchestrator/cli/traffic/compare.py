"""`slipstream bench-traffic MODEL --compare`: whether drafting pays, from the same prompts with and without drafts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from pydantic import ValidationError

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.traffic.live import live_line
from orchestrator.cli.traffic.requests import Plan, run_request
from orchestrator.client import Client
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import BenchFigures, BenchPut, BenchRound, BenchSums

_NO_DRAFTS = {"speculative.n_max": 0}
_COLUMNS = ("ROUND", "PLAIN TOK/S", "DRAFTED TOK/S", "RATIO", "ACCEPTED", "TOK/STEP")
_NO_DATA = "-"
Timings = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What is asked: `rounds` times one prompt of each kind, a pair of answers a prompt."""

    model: str
    kinds: Sequence[str]
    rounds: int
    seed: int
    max_tokens: int | None = None

    def pair(self, client: Client, number: int, kind: str) -> tuple[Timings, Timings]:
        """`timings` of the drafted and the plain answer to the prompt of a kind in round `number`.

        The drafted one comes first: a drafter that learns from answers must not have seen this one.
        """
        request = Plan(self.seed, (self.model,), {kind: 1.0}, 0.0, self.max_tokens).request(number)
        outcomes = [run_request(client, request, fields) for fields in ({}, _NO_DRAFTS)]
        for outcome in outcomes:
            if outcome.reason is not None:
                raise SlipstreamError(Code(outcome.reason), outcome.message)
        drafted, without = (outcome.timings for outcome in outcomes)
        if "draft_n" in without or ("draft_n" in drafted and "draft_n_steps" not in drafted):
            raise SlipstreamError(
                Code.INVALID_REQUEST,
                f"the llama-server of {self.model!r} is not patched: it ignores `speculative.n_max`, and only with "
                "that can drafting be compared with none",
                hint="build the patched server with `make server`",
            )
        return drafted, without

    def round(self, client: Client, number: int) -> BenchRound:
        """Sums over one prompt of each kind."""
        pairs = [self.pair(client, number, kind) for kind in self.kinds]
        try:
            return BenchRound(plain=_sums([p for _, p in pairs]), drafted=_sums([d for d, _ in pairs]))
        except ValidationError as e:
            said = "; ".join(str(problem["msg"]) for problem in e.errors())
            raise SlipstreamError(
                Code.UPSTREAM_FAILED, f"the answers of {self.model!r} cannot be compared: {said}"
            ) from e


def comparison_of(
    models: Sequence[str] | None, weights: Mapping[str, float], rounds: int, seed: int, max_tokens: int | None
) -> Comparison:
    """The comparison that the options ask for; a usage error when they name no model, or several."""
    if not models or len(models) > 1:
        raise typer.BadParameter(f"--compare takes one MODEL, and {len(models or ())} are named")
    return Comparison(models[0], [kind for kind, weight in weights.items() if weight], rounds, seed, max_tokens)


def compare(cli: Invocation, comparison: Comparison, *, keep: bool) -> None:
    """Measure, tell, and keep the result with an admin key."""
    client, model = cli.client, comparison.model
    if keep:
        # Before minutes of work: whoever may not keep the result hears it now.
        _check_may_keep(cli, model)
    with live_line(cli) as tell:

        def show(text: str) -> None:
            tell(lambda: f"{model}: {text}")

        show("warming up")
        # Loads the model, and finds an unpatched server.
        comparison.pair(client, 0, comparison.kinds[0])
        launch = _drafting_launch(cli, model) if keep else None
        rounds = _measured(cli, comparison, show)
    figures = BenchFigures.of(rounds)
    if not cli.is_json:
        _show(cli, rounds, figures)
    said: dict[str, Any] = {"model": model, "seed": comparison.seed, "is_kept": False, "advice": advice(figures)}
    try:
        if launch is not None:
            client.put_bench(model, BenchPut(launch=launch, rounds=tuple(rounds)))
            said["is_kept"] = True
    finally:
        # Also when it cannot be kept: it was work.
        if cli.is_json:
            cli.emit(said | figures.model_dump() | {"measured": [one.model_dump() for one in rounds]})
    if said["is_kept"] and not cli.is_json:
        cli.say(f"kept for {model}: `slipstream bench-traffic {model} --compare` replaces it", "dim")


def _measured(cli: Invocation, comparison: Comparison, show: Callable[[str], None]) -> list[BenchRound]:
    """Every round; after Ctrl-C those that are whole, if there is one."""
    rounds: list[BenchRound] = []
    try:
        for number in range(1, comparison.rounds + 1):
            told = f", the last one {rounds[-1].speedup_ratio:.2f} times" if rounds else ""
            show(f"round {number} of {comparison.rounds}{told}")
            rounds.append(comparison.round(cli.client, number))
    except KeyboardInterrupt:
        if not rounds:
            raise
    return rounds


def advice(figures: BenchFigures) -> str:
    """One sentence."""
    told = f"{figures.speedup_ratio:.2f} times ({figures.speedup_ratio_min:.2f} to {figures.speedup_ratio_max:.2f})"
    if figures.mean_acceptance_length is None:
        return f"nothing was drafted for these prompts: {told}"
    if figures.speedup_ratio_min > 1:
        said = f"drafting pays: {told}"
    elif figures.speedup_ratio_max < 1:
        said = f"drafting costs: {told}"
    else:
        said = f"drafting makes no clear difference: {told}"
    if figures.break_even_tokens is None:
        return said
    length, even = figures.mean_acceptance_length, figures.break_even_tokens
    return f"{said}; a step gives {length:.2f} tokens, and {even:.2f} would be break-even"


def _check_may_keep(cli: Invocation, model: str) -> None:
    try:
        cli.client.bench(model)
    except SlipstreamError as e:
        if e.code not in (Code.FORBIDDEN, Code.UNAUTHORIZED):
            raise
        hint = "--no-keep measures without it"
        raise SlipstreamError(e.code, f"keeping the result needs an admin key: {e.message}", hint=hint) from e


def _drafting_launch(cli: Invocation, model: str) -> str:
    """A name for how the server runs that is measured."""
    if cli.client.server(model).spec_type == "none":
        raise SlipstreamError(Code.INVALID_REQUEST, f"{model!r} makes no drafts: its speculation.type is none")
    launch = cli.client.bench(model).launch
    if launch is None:
        raise SlipstreamError(Code.SERVER_STOPPED, f"the server of {model!r} was ended meanwhile")
    return launch


def _sums(timings: Sequence[Timings]) -> BenchSums:
    def total(name: str) -> float:
        return sum(t.get(name) or 0 for t in timings)

    return BenchSums(
        answers=len(timings),
        predicted_tokens=int(total("predicted_n")),
        predicted_seconds=total("predicted_ms") / 1000,
        draft_tokens=int(total("draft_n")),
        accepted_tokens=int(total("draft_n_accepted")),
        verification_steps=int(total("draft_n_steps")),
    )


def _show(cli: Invocation, rounds: Sequence[BenchRound], figures: BenchFigures) -> None:
    rows = [_row(str(number), BenchFigures.of([one])) for number, one in enumerate(rounds, 1)]
    cli.table(_COLUMNS, [*rows, _row("all", figures)])
    typer.echo()
    cli.say(advice(figures))


def _row(name: str, figures: BenchFigures) -> tuple[str, ...]:
    accepted, length = figures.acceptance_ratio, figures.mean_acceptance_length
    return (
        name,
        f"{figures.plain_tokens_per_second:.1f}",
        f"{figures.drafted_tokens_per_second:.1f}",
        f"{figures.speedup_ratio:.2f}",
        _NO_DATA if accepted is None else f"{100 * accepted:.1f} %",
        _NO_DATA if length is None else f"{length:.2f}",
    )
