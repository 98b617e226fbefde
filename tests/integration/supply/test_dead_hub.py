"""A hub that takes connections and says nothing holds nobody up: neither other requests nor the end."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support import eventually
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration
LOOK_UPS = 24


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener


@pytest.fixture
def house(patched_server: Path, silent: socket.socket, tmp_path: Path) -> Iterator[Orchestrator]:
    address = f"http://127.0.0.1:{silent.getsockname()[1]}"
    made = Orchestrator(
        tmp_path / "house", patched_server, {"SHUTDOWN_TIMEOUT_SECONDS": "1"}, {"HF_ENDPOINT": address, "HF_TOKEN": ""}
    )
    made.start()
    yield made
    made.close()


def test_look_ups_at_a_dead_hub_hold_nobody_up(house: Orchestrator, silent: socket.socket) -> None:
    def look_up(number: int) -> None:
        with httpx.Client(base_url=house.base_url, trust_env=False, timeout=60) as client:
            source = {"hf": "o/n", "file": f"{number}.gguf"}
            with suppress(httpx.HTTPError):  # the orchestrator ends
                client.post("/api/gguf/inspect", json={"source": source})

    threads = [threading.Thread(target=look_up, args=(i,)) for i in range(LOOK_UPS)]
    for thread in threads:
        thread.start()
    held = [silent.accept()[0] for _ in range(4)]
    for path in ("/api/models", "/api/store", "/api/servers"):
        assert house.http.get(path, timeout=5).status_code == 200
    began = time.monotonic()
    house.send(signal.SIGTERM)
    house.wait()
    assert time.monotonic() - began < 10
    for connection in held:
        connection.close()
    for thread in threads:
        thread.join()
    assert eventually(lambda: house.leftovers() == [], "nothing is left")
