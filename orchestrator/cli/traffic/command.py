"""The command: options, the live line, the closing tables."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli.invocation import Invocation, invoked
from orchestrator.cli.options import Json, Url
from orchestrator.cli.traffic.compare import compare, comparison_of
from orchestrator.cli.traffic.generator import Generator, Limits
from orchestrator.cli.traffic.live import live_line
from orchestrator.cli.traffic.prompts import KINDS
from orchestrator.cli.traffic.requests import Plan, run_request
from orchestrator.cli.traffic.summary import summarize
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ServerState

_SECONDS = 60.0
_LIVE_SECONDS = 0.25
_LINE_SECONDS = 5.0
_NO_DATA = "-"
_FIGURES = ("REQUESTS", "FAILED", "TOKENS", "TOK/S", "EACH", "TTFT P50", "TTFT P99", "ACCEPTED", "TOK/ROUND")


def bench_traffic(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models in turns; without any: all that are ready.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help=f"Start requests for so long; {_SECONDS:g} without --requests.")
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", "-n", min=1, help="Requests in all.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=100, help="At a time, at most.")] = 4,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per second, at random times; as they end without it.")
    ] = None,
    mix: Annotated[
        str | None, typer.Option(metavar="KIND=WEIGHT,...", help=f"Of {', '.join(KINDS)}; all the same without it.")
    ] = None,
    stream: Annotated[float, typer.Option(min=0, max=1, help="Share of requests that are streamed.")] = 0.8,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="No answer longer than this, tokens.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same requests in the same order.")] = 0,
    compares: Annotated[
        bool,
        typer.Option("--compare", help="Instead: ask MODEL everything twice, with drafts and without. Do drafts pay?"),
    ] = False,
    rounds: Annotated[
        int, typer.Option(min=1, max=500, help="With --compare: rounds of one prompt of each kind, one at a time.")
    ] = 5,
    keep: Annotated[bool, typer.Option(help="With --compare: keep the result for MODEL; needs an admin key.")] = True,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Send a mix of requests, and say what speculation did for each model and each kind; Ctrl-C ends it early."""
    weights = parse_mix(mix)
    if compares:
        if seconds is not None or requests is not None or rate is not None:
            raise typer.BadParameter("--compare goes by --rounds; it takes no --seconds, --requests and --rate")
        comparison = comparison_of(models, weights, rounds, seed, max_tokens)
        with invoked(ctx, url, as_json) as cli:
            compare(cli, comparison, keep=keep)
        return
    if seconds is None and requests is None:
        seconds = _SECONDS
    with invoked(ctx, url, as_json) as cli:
        plan = Plan(seed, models or ready_models(cli), weights, stream, max_tokens)
        generator = Generator(
            plan, Limits(concurrency, seconds, requests, rate), lambda request: run_request(cli.client, request)
        )
        with live_line(cli, _LINE_SECONDS) as tell:
            generator.run(_LIVE_SECONDS, lambda: tell(lambda: _line(generator)))
        found = {"seed": seed} | summarize(generator.outcomes(), generator.seconds)
        cli.emit(found) if as_json else _show_tables(cli, found)
    if found["errors"]:
        raise typer.Exit(1)


def parse_mix(text: str | None) -> dict[str, float]:
    """`chat=2,edit=1` as weights; a usage error names what is none."""
    if text is None:
        return dict.fromkeys(KINDS, 1.0)
    weights: dict[str, float] = {}
    for pair in text.split(","):
        kind, equals, number = pair.strip().partition("=")
        if kind not in KINDS:
            raise typer.BadParameter(f"{kind!r} is no kind of request; there are {', '.join(KINDS)}")
        try:
            weights[kind] = float(number) if equals else 1.0
        except ValueError:
            raise typer.BadParameter(f"{pair!r} is not KIND=WEIGHT, such as chat=2") from None
        if not 0 <= weights[kind] < float("inf"):
            raise typer.BadParameter(f"{pair!r}: a weight is 0 or more")
    if not sum(weights.values()):
        raise typer.BadParameter("every weight is 0: there is nothing to send")
    return weights


def ready_models(cli: Invocation) -> list[str]:
    """Names of the models whose servers are ready; SlipstreamError when none is."""
    ready = [view.model for view in cli.client.servers().servers if view.state is ServerState.READY]
    if not ready:
        raise SlipstreamError(
            Code.INVALID_REQUEST,
            "no model is named, and no server is ready",
            hint="name models: the first request loads them; or start one with `slipstream start MODEL`",
        )
    return ready


def _line(generator: Generator) -> str:
    """`34 done, 4 running, 0 failed; 123.4 tok/s, TTFT 45 ms, 64.0 % accepted`."""
    total = summarize(generator.outcomes(), generator.seconds)["total"]
    parts = [f"{_number(total['tokens_per_second'])} tok/s"]
    parts.append(f"TTFT {_milliseconds(total['first_token_seconds']['p50'])}")
    parts.append(f"{_percent(total['acceptance_ratio'])} accepted")
    return f"{total['requests']} done, {generator.running} running, {total['failed']} failed; {', '.join(parts)}"


def _show_tables(cli: Invocation, found: Mapping[str, Any]) -> None:
    if not found["total"]["requests"]:
        cli.warn("no request")
        return
    cli.table(("MODEL", *_FIGURES), [(name, *_cells(figures)) for name, figures in found["models"].items()])
    cli.say("")
    cli.table(("KIND", *_FIGURES), [(name, *_cells(figures)) for name, figures in found["kinds"].items()])
    if cut := found["total"]["cut_off"]:
        cli.warn(f"{cut} of the requests were cut off before their end")
    for error in found["errors"]:
        cli.warn(f"{error['model']}: {error['count']} x {error['reason']}: {error['message']}")


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    first = figures["first_token_seconds"]
    return (
        str(figures["requests"]),
        str(figures["failed"]),
        str(figures["tokens"]),
        _number(figures["tokens_per_second"]),
        _number(figures["tokens_per_second_of_an_answer"]),
        _milliseconds(first["p50"]),
        _milliseconds(first["p99"]),
        _percent(figures["acceptance_ratio"]),
        _number(figures["mean_acceptance_length_tokens"], 2),
    )


def _number(value: float | None, digits: int = 1) -> str:
    return _NO_DATA if value is None else f"{value:.{digits}f}"


def _milliseconds(seconds: float | None) -> str:
    return _NO_DATA if seconds is None else f"{1000 * seconds:.0f} ms"


def _percent(ratio: float | None) -> str:
    return _NO_DATA if ratio is None else f"{100 * ratio:.1f} %"
