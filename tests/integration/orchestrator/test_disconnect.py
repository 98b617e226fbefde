"""A client that leaves frees what it holds within a second, and is counted."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import THREADS, MakeOrchestrator
from tests.integration.orchestrator.streams import ENDLESS, MESSAGES, Background, open_stream
from tests.support import Samples, ToyBox, eventually
from tests.support.orchestrator import ChildServer, Orchestrator, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration


@pytest.fixture
def child(house: Orchestrator) -> Iterator[ChildServer]:
    """A fresh server of `endless`, both slots free."""
    yield house.start_model("endless")
    house.command("endless", "stop").raise_for_status()


class Leaver:
    """A client that sends a request on a socket of its own and goes without a word."""

    def __init__(self, house: Orchestrator, **fields: object) -> None:
        address = urlsplit(house.base_url)
        assert address.hostname and address.port
        self.socket = socket.create_connection((address.hostname, address.port))
        body = json.dumps({"messages": MESSAGES, **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    def leave(self) -> None:
        self.socket.close()


def cancelled(house: Orchestrator, model: str) -> float:
    return house.metric("slipstream_requests_total", model=model, outcome="cancelled") or 0.0


def test_while_it_streams(house: Orchestrator, child: ChildServer) -> None:
    before = cancelled(house, "endless")
    with open_stream(house, **ENDLESS) as stream:
        stream.begin()
        assert child.busy_slots() == 1
    eventually(lambda: child.busy_slots() == 0, "the slot is free", 1.0)
    eventually(lambda: cancelled(house, "endless") == before + 1, "it is counted", 1.0)


# llama-server asks once a second whether the client of a plain call is still there.
PLAIN_DEADLINE_SECONDS = 2.0
TASK_CANCELLED = "stop: cancel task"


@contextmanager
def nothing_else(house: Orchestrator) -> Iterator[None]:
    yield


@contextmanager
def beside_a_stream(house: Orchestrator) -> Iterator[None]:
    with open_stream(house, **ENDLESS) as stream:
        stream.begin()
        yield


def cancelled_tasks(house: Orchestrator) -> int:
    """Tasks that the server of `endless` has given up, from its log: asking it would wake it."""
    return house.server_log("endless").count(TASK_CANCELLED)


@pytest.mark.parametrize("beside", [nothing_else, beside_a_stream], ids=["alone", "beside a stream"])
def test_on_a_plain_call(
    house: Orchestrator, child: ChildServer, beside: Callable[[Orchestrator], AbstractContextManager[None]]
) -> None:
    with beside(house):
        already_busy = child.busy_slots()
        before, tasks = cancelled(house, "endless"), cancelled_tasks(house)
        client = Leaver(house, **ENDLESS)
        eventually(lambda: child.busy_slots() == already_busy + 1, "it generates")
        client.leave()
        eventually(lambda: cancelled_tasks(house) == tasks + 1, "the task is cancelled", PLAIN_DEADLINE_SECONDS)
        eventually(lambda: child.busy_slots() == already_busy, "the slot is free", 1.0)
        eventually(lambda: cancelled(house, "endless") == before + 1, "it is counted", 1.0)


def test_while_it_waits_for_a_slot(house: Orchestrator, child: ChildServer) -> None:
    with open_stream(house, **ENDLESS) as one, open_stream(house, **ENDLESS) as two:
        one.begin()
        two.begin()
        before = cancelled(house, "endless")
        waiting = Leaver(house, **ENDLESS)
        eventually(lambda: deferred(child) == 1, "it waits for a slot")
        waiting.leave()
        eventually(lambda: cancelled(house, "endless") == before + 1, "it is counted", 1.0)
        eventually(lambda: deferred(child) == 0, "nobody waits", PLAIN_DEADLINE_SECONDS)


def test_while_it_waits_in_our_queue(make_orchestrator: MakeOrchestrator, toys: ToyBox) -> None:
    ours = make_orchestrator()
    flags = THREADS | {"ctx_size": 1024, "parallel": 1, "context_shift": True}
    ours.write_model("narrow", toys.pair().path, server=flags, limits={"concurrent": 1})
    with running_orchestrator(ours), open_stream(ours, **ENDLESS | {"model": "narrow"}) as stream:
        stream.begin()
        waiting = Leaver(ours, **ENDLESS | {"model": "narrow"})
        eventually(lambda: ours.view("narrow")["waiting"] == 1, "it waits")
        waiting.leave()
        eventually(lambda: cancelled(ours, "narrow") == 1, "it is counted", 1.0)
        assert (ours.view("narrow")["waiting"], ours.view("narrow")["running"]) == (0, 1)


CHUNK_BYTES = 64 << 10
# Buffers of the kernel, for two connections over loopback, and ours.
MOST_UNDER_WAY_BYTES = 24 << 20
MOST_GROWTH_BYTES = 8 << 20


def resident_bytes(house: Orchestrator) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{house.pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


def test_a_client_that_does_not_read_holds_its_server_up_not_our_memory(
    make_orchestrator: MakeOrchestrator, tmp_path: Path
) -> None:
    ours = make_orchestrator(FAKE_SERVER)
    sent, closed, script = tmp_path / "sent", tmp_path / "closed", tmp_path / "flood.gguf"
    fields = {"chunk_bytes": CHUNK_BYTES, "chunk_count": -1, "sent": str(sent), "closed": str(closed)}
    write_script(script, fields)
    ours.write_model("flood", script)

    def sent_bytes() -> int:
        return int(sent.read_text() or 0) * CHUNK_BYTES if sent.exists() else 0

    def stands_still() -> bool:
        before = sent_bytes()
        time.sleep(0.5)
        return 0 < before == sent_bytes()

    with running_orchestrator(ours):
        ours.start_model("flood")
        before = resident_bytes(ours)
        client = Leaver(ours, model="flood", stream=True)
        eventually(stands_still, "the server waits for the client")
        assert sent_bytes() < MOST_UNDER_WAY_BYTES
        assert resident_bytes(ours) - before < MOST_GROWTH_BYTES
        stood_at = sent_bytes()
        while sent_bytes() < stood_at + 4 * MOST_UNDER_WAY_BYTES:
            assert client.socket.recv(1 << 20)
        assert resident_bytes(ours) - before < MOST_GROWTH_BYTES
        client.leave()
        eventually(closed.exists, "the server sees it leave", 1.0)
        eventually(lambda: cancelled(ours, "flood") == 1, "it is counted", 1.0)


def deferred(child: ChildServer) -> float:
    return Samples.parse(child.get("/metrics").text).get("requests_deferred")


def test_while_it_waits_for_a_load(make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
    slow = make_orchestrator(FAKE_SERVER)
    gate, seen = tmp_path / "gate", tmp_path / "seen"
    script = tmp_path / "slow.gguf"
    write_script(script, {"load_gate": str(gate), "seen": str(seen)})
    slow.write_model("slow", script)
    with running_orchestrator(slow):
        leaver = Leaver(slow, model="slow")
        eventually(lambda: slow.view("slow")["state"] == "loading", "it loads")
        leaver.leave()
        eventually(lambda: cancelled(slow, "slow") == 1, "it is counted", 1.0)
        assert slow.view("slow")["state"] == "loading", "who waits for the same load is not robbed of it"
        stayer = Background(lambda: slow.chat("slow"))
        gate.touch()
        assert stayer.wait().status_code == 200
        assert len(seen.read_text().splitlines()) == 1, "the request of the one who left was never sent"
