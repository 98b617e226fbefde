"""The benchmarks' own parts: what they count with must count right."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from bench import load
from bench.load import Address, Answer, ask, measured, staggered
from bench.many import Request
from bench.peers import paced
from bench.processes import cpu_seconds, running

pytestmark = pytest.mark.integration

STREAMS, TOKENS = 5, 20
TIMEOUT_SECONDS = 30.0


def body(**fields: object) -> dict[str, object]:
    return {"model": "toy", "messages": [], "max_tokens": TOKENS, "stream": True} | fields


def test_streams_of_the_paced_upstream_are_counted_whole(tmp_path: Path) -> None:
    program = paced.program(tmp_path, 200.0)
    with running([str(program), "--parallel", "3"], tmp_path / "paced.log") as (_, url):
        address = Address.of(url)
        answers = measured(
            lambda: staggered(STREAMS, 0.01, lambda: ask(address, "/v1/chat/completions", body(), TIMEOUT_SECONDS))
        )
        plain = measured(lambda: ask(address, "/props", {}, TIMEOUT_SECONDS))
    assert len(answers) == STREAMS
    for answer in answers:
        answer.require(TOKENS)
        assert len(answer.delays) == TOKENS
        assert all(0 < delay < TIMEOUT_SECONDS for delay in answer.delays)
        assert answer.began < answer.first < answer.last
    assert json.loads(plain.body)["total_slots"] == 3


def test_a_stream_that_breaks_off_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = paced.program(tmp_path, 200.0)
    with running([str(program)], tmp_path / "paced.log") as (process, url):

        async def cut_off() -> Answer:
            begun = asyncio.Event()
            received = load._Exchange.data_received

            def noticed(exchange: load._Exchange, data: bytes) -> None:
                received(exchange, data)
                if exchange._answer.tokens:
                    begun.set()

            monkeypatch.setattr(load._Exchange, "data_received", noticed)
            asked = asyncio.ensure_future(ask(Address.of(url), "/", body(max_tokens=100_000), TIMEOUT_SECONDS))
            await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
            os.killpg(process.pid, signal.SIGKILL)
            return await asked

        answer = measured(cut_off)
    assert answer.status == 200 and answer.tokens > 0
    assert not answer.is_whole
    with pytest.raises(RuntimeError, match=f"of {TOKENS} tokens"):
        answer.require(TOKENS)


def test_another_models_answer_is_wrong() -> None:
    request = Request("amber", "x", 4, "abcd")
    right = b'{"model": "amber", "choices": [{"text": "abcd"}]}'
    assert request.is_right(Answer(0.0, body=right))
    assert not request.is_right(Answer(0.0, body=right.replace(b"abcd", b"abce")))
    assert not request.is_right(Answer(0.0, body=right.replace(b"amber", b"birch")))
    assert not request.is_right(Answer(0.0, body=b"<html>"))


def test_a_trees_cpu_time_leaves_out_what_it_is_told_to() -> None:
    own = cpu_seconds(os.getpid())
    assert own > 0
    assert cpu_seconds(os.getppid()) >= own
    assert cpu_seconds(os.getpid(), without=[os.getpid()]) == 0
