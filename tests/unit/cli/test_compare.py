"""`slipstream bench-traffic MODEL --compare`: what is asked, what is told, and what is kept."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.cli.traffic.compare import Comparison, advice
from orchestrator.client import Client
from orchestrator.schemas import BenchFigures, BenchRound
from tests.unit.api_stub import Answer, ApiStub, Asked, problem, server_view
from tests.unit.cli.conftest import Run, cells

CHAT, BENCH = "/v1/chat/completions", "/api/models/toy/bench"
LAUNCH = "0123456789abcdef"
PLAIN = {"predicted_n": 101, "predicted_ms": 1000.0}
DRAFTED = {
    "predicted_n": 101,
    "predicted_ms": 800.0,
    "draft_n": 80,
    "draft_n_accepted": 80,
    "draft_n_relaxed": 0,
    "draft_n_steps": 20,
}
ONE_KIND = ("--compare", "--mix", "chat")


def answering(plain: dict[str, Any], drafted: dict[str, Any]) -> Callable[[Asked], Answer]:
    def answer(asked: Asked) -> Answer:
        timings = plain if asked.body.get("speculative.n_max") == 0 else drafted
        return Answer({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "timings": timings})

    return answer


@pytest.fixture
def house(stub: ApiStub) -> ApiStub:
    stub.routes[f"POST {CHAT}"] = answering(PLAIN, DRAFTED)
    stub.routes["GET /api/servers/toy"] = Answer(server_view("toy"))
    stub.routes[f"GET {BENCH}"] = stub.routes[f"PUT {BENCH}"] = Answer({"model": "toy", "launch": LAUNCH})
    return stub


def test_the_same_prompts_with_and_without_drafts_in_turns(run: Run, house: ApiStub) -> None:
    done = run("bench-traffic", "toy", "--compare", "--rounds", "3", "--mix", "chat,edit", "--max-tokens", "50")
    assert done.status == 0, done.err
    warm_up, asked = house.bodies(CHAT)[:2], house.bodies(CHAT)[2:]
    assert len(warm_up) == 2 and len(asked) == 3 * 2 * 2
    for drafted, plain in zip(asked[::2], asked[1::2], strict=True):
        assert plain == drafted | {"speculative.n_max": 0}
        assert drafted["max_tokens"] == 50 and not drafted["stream"]
    assert len({str(body["messages"]) for body in asked[::2]}) == 6, "every round has prompts of its own"
    rows = [cells(line) for line in done.out.splitlines() if line]
    assert rows[0][0] == "ROUND" and [row[0] for row in rows[1:5]] == ["1", "2", "3", "all"]
    assert rows[4] == ["all", "100.0", "125.0", "1.25", "100.0", "%", "5.00"]
    assert (
        "drafting pays: 1.25 times (1.25 to 1.25); a step gives 5.00 tokens, and 4.00 would be break-even" in done.out
    )
    half = {"answers": 2, "predicted_tokens": 202, "predicted_seconds": 2.0}
    [kept] = house.bodies(BENCH)[-1:]
    assert kept["launch"] == LAUNCH and len(kept["rounds"]) == 3
    none = dict.fromkeys(("draft_tokens", "accepted_tokens", "verification_steps"), 0)
    assert kept["rounds"][0]["plain"] == half | none


def test_json_has_everything_and_nothing_is_kept_without_being_asked(run: Run, house: ApiStub) -> None:
    done = run("bench-traffic", "toy", *ONE_KIND, "--rounds", "2", "--no-keep", "--json")
    assert (done.status, done.err) == (0, "")
    assert (done.json["model"], done.json["rounds"], done.json["is_kept"]) == ("toy", 2, False)
    assert (done.json["speedup_ratio"], done.json["acceptance_ratio"]) == (1.25, 1.0)
    assert len(done.json["measured"]) == 2
    assert {asked.path for asked in house.asked} == {CHAT}, "no admin key is needed"


def test_an_unpatched_server_is_found_before_the_measurement(run: Run, house: ApiStub) -> None:
    unpatched = {name: value for name, value in DRAFTED.items() if name not in ("draft_n_steps", "draft_n_relaxed")}
    for timings in (answering(DRAFTED, DRAFTED), answering(PLAIN, unpatched)):
        house.routes[f"POST {CHAT}"] = timings
        done = run("bench-traffic", "toy", *ONE_KIND, "--no-keep")
        assert (done.status, done.out) == (1, "")
        assert "the llama-server of 'toy' is not patched" in done.err and "make server" in done.err
    assert len(house.bodies(CHAT)) == 4


def test_who_may_not_keep_the_result_hears_it_before_the_measurement(run: Run, house: ApiStub) -> None:
    house.routes[f"GET {BENCH}"] = problem("forbidden", "this key opens /v1", 403)
    done = run("bench-traffic", "toy", *ONE_KIND)
    assert (done.status, house.bodies(CHAT)) == (1, [])
    assert "keeping the result needs an admin key" in done.err and "--no-keep" in done.err


def test_a_result_that_cannot_be_kept_is_told_all_the_same(run: Run, house: ApiStub) -> None:
    house.routes[f"PUT {BENCH}"] = problem("conflict", "the server of 'toy' runs otherwise now", 409)
    done = run("bench-traffic", "toy", *ONE_KIND, "--rounds", "1")
    assert done.status == 1
    assert "drafting pays" in done.out and "runs otherwise now" in done.err


def test_json_is_told_too_when_it_cannot_be_kept(run: Run, house: ApiStub) -> None:
    house.routes[f"PUT {BENCH}"] = problem("conflict", "the server of 'toy' runs otherwise now", 409)
    done = run("bench-traffic", "toy", *ONE_KIND, "--rounds", "1", "--json")
    assert done.status == 1 and "runs otherwise now" in done.err
    assert (done.json["is_kept"], done.json["rounds"]) == (False, 1)


def test_ctrl_c_ends_it_with_the_rounds_that_are_whole(
    run: Run, house: ApiStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Comparison.round
    measured: list[int] = []

    def interrupted(self: Comparison, client: Client, number: int) -> BenchRound:
        if number > whole:
            raise KeyboardInterrupt
        measured.append(number)
        return measure(self, client, number)

    monkeypatch.setattr(Comparison, "round", interrupted)
    whole = 2
    done = run("bench-traffic", "toy", *ONE_KIND, "--json")
    assert (done.status, done.json["rounds"], measured) == (0, 2, [1, 2])
    whole = 0
    assert run("bench-traffic", "toy", *ONE_KIND).status == 130
    assert len(house.bodies(BENCH)) == 5, "one kept, of two readings each"


def test_a_model_that_drafts_nothing_by_itself_is_not_compared(run: Run, house: ApiStub) -> None:
    house.routes["GET /api/servers/toy"] = Answer(server_view("toy", spec_type="none"))
    house.routes[f"POST {CHAT}"] = answering(PLAIN, PLAIN)
    done = run("bench-traffic", "toy", *ONE_KIND)
    assert done.status == 1 and "'toy' makes no drafts: its speculation.type is none" in done.err
    assert len(house.bodies(CHAT)) == 2


def test_answers_of_one_token_cannot_be_compared(run: Run, house: ApiStub) -> None:
    one = {"predicted_n": 1, "predicted_ms": 0.1}
    house.routes[f"POST {CHAT}"] = answering(one, one)
    done = run("bench-traffic", "toy", *ONE_KIND, "--no-keep")
    assert done.status == 1 and "cannot be compared: Value error, 1 tokens of 1 answers have no rate" in done.err


def test_a_failed_request_ends_it(run: Run, house: ApiStub) -> None:
    house.routes[f"POST {CHAT}"] = problem("queue_full", "toy has no room in its queue", 429)
    done = run("bench-traffic", "toy", *ONE_KIND, "--no-keep")
    assert done.status == 1 and "toy has no room in its queue" in done.err


@pytest.mark.parametrize(
    "arguments",
    [(), ("a", "b"), ("a", "--seconds", "5"), ("a", "-n", "5"), ("a", "--rate", "2"), ("a", "--rounds", "0")],
)
def test_wrong_usage(run: Run, house: ApiStub, arguments: tuple[str, ...]) -> None:
    assert run("bench-traffic", "--compare", *arguments).status == 2
    assert house.asked == []


def test_advice_is_one_sentence_and_claims_no_more_than_the_rounds_show() -> None:
    def told(ratio: float, least: float, greatest: float, **fields: Any) -> str:
        return advice(
            BenchFigures(
                rounds=5,
                plain_tokens_per_second=1.0,
                drafted_tokens_per_second=ratio,
                speedup_ratio=ratio,
                speedup_ratio_min=least,
                speedup_ratio_max=greatest,
                **fields,
            )
        )

    length = {"mean_acceptance_length": 3.0}
    assert told(1.31, 1.25, 1.38, **length) == "drafting pays: 1.31 times (1.25 to 1.38)"
    assert told(0.9, 0.8, 0.99, **length).startswith("drafting costs: 0.90 times")
    assert told(1.1, 0.98, 1.2, **length).startswith("drafting makes no clear difference: 1.10 times")
    assert told(1.0, 0.99, 1.01).startswith("nothing was drafted for these prompts")
    assert told(0.9, 0.8, 0.99, break_even_tokens=3.5, **length).endswith(
        "; a step gives 3.00 tokens, and 3.50 would be break-even"
    )
