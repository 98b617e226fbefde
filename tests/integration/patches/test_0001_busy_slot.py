"""0001: a request for a busy slot leaves that slot's running answer alone."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support import LlamaServer, ToyBox

pytestmark = pytest.mark.integration

# Long enough to be worth keeping in the prompt cache, and with no common prefix.
CACHED_PROMPT = "The cat sat on the mat. " * 40
VICTIM_PROMPT = "Once upon a time there was a slot. " * 20
VICTIM_TOKENS = 800
TOKENS_BEFORE_THE_INTRUDER = 50


def answer_with_intruder(server: LlamaServer) -> list[int]:
    """Token ids of an answer on slot 0 while a request names slot 0 and has its prompt in the RAM cache."""
    client = server.client
    # The second prompt pushes the first one out of the slot and into the prompt cache.
    for prompt in (CACHED_PROMPT, VICTIM_PROMPT):
        client.completion(prompt, 4, id_slot=0, cache_prompt=True)
    victim = client.stream(VICTIM_PROMPT, VICTIM_TOKENS, id_slot=0, cache_prompt=True)
    events = list(islice(victim, TOKENS_BEFORE_THE_INTRUDER))
    with ThreadPoolExecutor(1) as pool:
        intruder = pool.submit(client.completion, CACHED_PROMPT, 4, id_slot=0, cache_prompt=True)
        events += victim
        assert intruder.result().timings["predicted_n"] == 4
    return [token for event in events for token in event["tokens"]]


@pytest.fixture(params=["none", "draft-mtp"])
def spec_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def outcome(start_server: StartServer, toys: ToyBox, binary: Path, spec_type: str) -> tuple[list[int], list[int]]:
    """The undisturbed answer and the disturbed one, of two fresh servers."""
    toy = toys.mtp(trunk=0.5)
    flags = ("--parallel", "1", "--spec-type", spec_type)
    alone = start_server(binary, toy, *flags).client.completion(VICTIM_PROMPT, VICTIM_TOKENS)
    return list(alone.tokens), answer_with_intruder(start_server(binary, toy, *flags))


def test_the_unpatched_server_corrupts_the_running_answer(
    start_server: StartServer, toys: ToyBox, unpatched_server: Path, spec_type: str
) -> None:
    alone, disturbed = outcome(start_server, toys, unpatched_server, spec_type)
    assert disturbed[:TOKENS_BEFORE_THE_INTRUDER] == alone[:TOKENS_BEFORE_THE_INTRUDER]
    assert disturbed != alone


def test_the_patched_server_finishes_the_running_answer_as_if_alone(
    start_server: StartServer, toys: ToyBox, patched_server: Path, spec_type: str
) -> None:
    alone, disturbed = outcome(start_server, toys, patched_server, spec_type)
    assert len(alone) == VICTIM_TOKENS
    assert disturbed == alone


def test_an_idle_slot_still_takes_its_prompt_from_the_cache(
    start_server: StartServer, toys: ToyBox, patched_server: Path
) -> None:
    client = start_server(patched_server, toys.mtp(trunk=0.5), "--parallel", "1").client
    for prompt in (CACHED_PROMPT, VICTIM_PROMPT):
        client.completion(prompt, 4, id_slot=0, cache_prompt=True)
    again = client.completion(CACHED_PROMPT, 4, id_slot=0, cache_prompt=True)
    assert again.timings["cache_n"] > 0.9 * len(CACHED_PROMPT)
