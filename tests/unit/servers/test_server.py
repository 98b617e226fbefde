"""The record of a model's servers."""

import asyncio
import time

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Failure
from orchestrator.servers import Server
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.operation import Operation
from orchestrator.servers.server import Waiter


def server() -> Server:
    return Server("m", LogBuffer(10))


def wait(on: Server, seconds: float) -> float:
    """Have a request wait that came so long ago; when that was."""
    since = time.monotonic() - seconds
    on.waiting.append(Waiter(asyncio.get_running_loop().create_future(), since))
    return since


class TestAskedSince:
    async def test_nobody_waits_and_nobody_has_asked(self) -> None:
        before = time.monotonic()
        assert before <= server().asked_since <= time.monotonic()

    async def test_the_first_request_that_waits(self) -> None:
        asked = server()
        first = wait(asked, 5)
        wait(asked, 1)
        assert asked.asked_since == first

    async def test_not_before_its_last_server_took_requests(self) -> None:
        asked = server()
        wait(asked, 5)
        asked.turn_ended = time.monotonic() - 2
        assert asked.asked_since == asked.turn_ended

    async def test_a_command_and_a_request_whichever_came_first(self) -> None:
        asked = server()
        asked.operation = Operation(asked)
        assert asked.asked_since == asked.operation.since
        first = wait(asked, 5)
        assert asked.asked_since == first
        asked.operation.since = first - 1
        assert asked.asked_since == first - 1

    async def test_a_command_that_ends_it_is_none(self) -> None:
        asked = server()
        asked.operation = Operation(asked, leaving=True, since=1.0)
        assert asked.asked_since > 1.0


def test_a_refusal_is_no_failure_of_a_server() -> None:
    refused = server()
    refused.refuse(SlipstreamError(Code.HAZARD, "no"))
    assert refused.failure == Failure(reason="hazard", message="no") and not refused.failures
