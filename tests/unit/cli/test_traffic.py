"""`slipstream bench-traffic`: the order of requests, the figures, and how the command ends."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import typer

from orchestrator.cli.traffic.command import parse_mix
from orchestrator.cli.traffic.generator import Generator, Limits
from orchestrator.cli.traffic.prompts import KINDS
from orchestrator.cli.traffic.requests import Outcome, Plan, Request
from orchestrator.cli.traffic.summary import summarize
from tests.unit.api_stub import Answer, ApiStub, Asked, chat_answer, chunk, problem, server_view
from tests.unit.cli.conftest import Run, cells

CHAT = "/v1/chat/completions"
EVEN = dict.fromkeys(KINDS, 1.0)
TIMINGS = {
    "predicted_n": 40,
    "predicted_ms": 500.0,
    "draft_n": 30,
    "draft_n_accepted": 24,
    "draft_n_relaxed": 2,
    "draft_n_steps": 12,
}


def plan(seed: int = 7, models: tuple[str, ...] = ("a", "b"), mix: Mapping[str, float] = EVEN) -> Plan:
    return Plan(seed, models, mix, stream_ratio=0.5)


def plain(timings: Mapping[str, Any]) -> Answer:
    message = {"role": "assistant", "content": "x"}
    return Answer({"choices": [{"message": message, "finish_reason": "stop"}], "timings": timings})


def answered(asked: Asked) -> Answer:
    timings = {"toy": TIMINGS, "undrafted": {"predicted_n": 10, "predicted_ms": 100.0}}[asked.body["model"]]
    return chat_answer(chunk("x"), chunk(finish="stop", timings=timings)) if asked.body["stream"] else plain(timings)


def test_the_same_seed_gives_the_same_requests_in_any_order() -> None:
    forth = [plan().request(n) for n in range(50)]
    assert forth == [plan().request(n) for n in reversed(range(50))][::-1]
    assert forth != [plan(seed=8).request(n) for n in range(50)]
    assert [request.model for request in forth[:4]] == ["a", "b", "a", "b"]
    assert {request.is_stream for request in forth} == {True, False}
    due, again = plan().arrivals(10), plan().arrivals(10)
    times = [due.next() for _ in range(1000)]
    assert times == sorted(times) == [again.next() for _ in range(1000)]
    assert times[0] == 0 and 85 < times[-1] < 115, "10 a second"


def test_every_kind_makes_messages_without_a_gap() -> None:
    for kind in KINDS:
        texts = {str(plan(mix={kind: 1.0}).request(n).messages) for n in range(40)}
        assert len(texts) > 3, f"{kind} varies"
        assert not [text for text in texts if "{name}" in text or "{number}" in text or "{hour}" in text]


def test_a_weight_of_zero_leaves_a_kind_out_and_a_limit_holds_for_every_answer() -> None:
    chosen = Plan(1, ("a",), parse_mix("long=1,chat=3,short=0"), 1.0, max_tokens=100)
    requests = [chosen.request(n) for n in range(200)]
    counts = {kind: sum(r.kind == kind for r in requests) for kind in KINDS}
    assert counts["short"] == counts["code"] == 0 and 110 < counts["chat"] < 190
    assert {r.fields["max_tokens"] for r in requests} == {100}


@pytest.mark.parametrize("text", ["poem=1", "chat=x", "chat=-1", "chat=nan", "chat=inf", "chat=0", ""])
def test_what_is_no_mix_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_mix(text)


def test_figures_are_sums_over_answers_and_no_drafts_are_no_data() -> None:
    def outcome(model: str, timings: Mapping[str, Any], first: float | None, **fields: Any) -> Outcome:
        return Outcome(Request(0, model, "chat", [], {}, True), 1.0, timings, first, **fields)

    half = TIMINGS | {"draft_n_accepted": 6, "draft_n_steps": 6}
    found = summarize(
        [
            *(outcome("a", TIMINGS, 0.1), outcome("a", half, 0.3), outcome("a", {}, None, reason="upstream_failed")),
            *(outcome("b", {"predicted_n": 10, "predicted_ms": 100.0}, None), outcome("b", {}, None, reason="cut_off")),
        ],
        seconds=4.0,
    )
    a, b = found["models"]["a"], found["models"]["b"]
    assert (a["requests"], a["failed"], a["cut_off"], a["tokens"]) == (3, 1, 0, 80)
    assert (a["tokens_per_second"], a["tokens_per_second_of_an_answer"]) == (20.0, 80.0)
    assert (a["acceptance_ratio"], a["mean_acceptance_length_tokens"]) == (30 / 60, round(1 + 30 / 18, 4))
    assert a["first_token_seconds"] == {"p50": 0.3, "p99": 0.3}
    assert (b["failed"], b["cut_off"], b["acceptance_ratio"], b["mean_acceptance_length_tokens"]) == (0, 1, None, None)
    assert b["first_token_seconds"] == {"p50": None, "p99": None}
    assert found["total"]["tokens"] == found["kinds"]["chat"]["tokens"] == 90
    assert found["errors"] == [{"model": "a", "reason": "upstream_failed", "count": 1, "message": ""}]


def test_never_more_at_a_time_than_asked_for_and_every_request_once() -> None:
    seen: list[int] = []
    running = threading.Semaphore(3)

    def ask(request: Request) -> Outcome:
        assert running.acquire(blocking=False)
        seen.append(request.number)
        running.release()
        return Outcome(request, 0.0)

    generator = Generator(plan(), Limits(concurrency=3, requests=200), ask)
    generator.run(0.05, lambda: None)
    assert sorted(seen) == list(range(200)) == sorted(o.request.number for o in generator.outcomes())
    assert generator.running == 0


def test_time_is_a_limit_too() -> None:
    generator = Generator(plan(), Limits(concurrency=2, seconds=0.05), lambda request: Outcome(request, 0.0))
    generator.run(0.05, lambda: None)
    assert generator.outcomes() and 0.05 <= generator.seconds < 5
    none = Generator(plan(), Limits(concurrency=2, seconds=0), lambda request: Outcome(request, 0.0))
    none.run(0.05, lambda: None)
    assert not none.outcomes()


def test_a_fault_of_our_own_ends_the_run_and_is_raised() -> None:
    def ask(_: Request) -> Outcome:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Generator(plan(), Limits(concurrency=2), ask).run(0.05, lambda: None)


def test_tables_per_model_and_kind(run: Run, stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = answered
    done = run("bench-traffic", "toy", "undrafted", "-n", "12", "--mix", "chat,edit", "--stream", "0.5", "-c", "2")
    assert done.status == 0, done.err
    rows = {cells(line)[0]: cells(line) for line in done.out.splitlines() if line}
    assert rows["toy"][1:4] == ["6", "0", "240"] and rows["toy"][-3:] == ["80.0", "%", "3.00"]
    assert rows["undrafted"][1:4] == ["6", "0", "60"] and rows["undrafted"][-2:] == ["-", "-"]
    assert int(rows["chat"][1]) + int(rows["edit"][1]) == 12
    assert {asked.body["stream"] for asked in stub.asked} == {True, False}


def test_json_is_one_value_and_errors_make_the_status(run: Run, stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = problem("queue_full", "toy has no room in its queue", 429)
    stub.routes["GET /api/servers"] = Answer({"servers": [server_view("toy"), server_view("idle", "stopped")]})
    done = run("bench-traffic", "--requests", "5", "--seed", "3", "--json")
    assert done.status == 1
    assert (done.json["seed"], list(done.json["models"]), done.json["total"]["failed"]) == (3, ["toy"], 5)
    assert done.json["errors"] == [
        {"model": "toy", "reason": "queue_full", "count": 5, "message": "toy has no room in its queue"}
    ]
    assert done.err == ""


def test_without_a_model_one_must_be_ready(run: Run, stub: ApiStub) -> None:
    stub.routes["GET /api/servers"] = Answer({"servers": [server_view("idle", "stopped")]})
    done = run("bench-traffic", "-n", "1")
    assert (done.status, done.out) == (1, "")
    assert "no server is ready" in done.err


def test_an_answer_without_a_message_is_told(run: Run, stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = Answer({"choices": []})
    done = run("bench-traffic", "toy", "-n", "1", "--stream", "0")
    assert done.status == 1
    assert "upstream_failed: the answer of 'toy' has no message in it" in done.err
