"""A start that nobody waits for any more: what a slow engine makes of it afterwards goes too."""

import asyncio
import threading
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.drivers import docker
from tests.integration.docker.conftest import Site

pytestmark = pytest.mark.integration


async def test_a_start_that_met_its_deadline_leaves_no_container(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run, may_go, has_ended = docker._run, threading.Event(), threading.Event()
    made: list[str] = []

    def slow(client: Any, body: dict[str, Any], name: str, *rest: Any) -> None:
        assert may_go.wait(30.0)
        try:
            made.append(name)
            run(client, body, name, *rest)
        finally:
            has_ended.set()

    monkeypatch.setattr(docker, "_run", slow)
    monkeypatch.setattr(docker, "_START_DEADLINE_SECONDS", 0.2)
    driver = await site.driver()
    with pytest.raises(SlipstreamError, match=r"no answer within 0\.2 s") as caught:
        await driver.start(site.order())
    assert caught.value.code is Code.HOST_FAILED and site.engine.owned(site.owner) == []
    may_go.set()
    assert await asyncio.to_thread(has_ended.wait, 30.0)
    assert len(made) == 1 and site.engine.owned(site.owner) == []
