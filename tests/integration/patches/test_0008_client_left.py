"""0008: a client that left is noticed although results of other tasks keep coming."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.conftest import StartServer
from tests.support import LlamaClient, LlamaServer, ToyBox, eventually

pytestmark = pytest.mark.integration

# The server asks once a second whether the client is there.
NOTICED_SECONDS = 3.0
StartEndless = Callable[[Path], LlamaServer]
ENDLESS = {"prompt": "Once upon a time", "n_predict": 1_000_000, "ignore_eos": True, "stream": False}


@pytest.fixture
def start_endless(start_server: StartServer, toys: ToyBox) -> StartEndless:
    def start(binary: Path) -> LlamaServer:
        return start_server(binary, toys.mtp(), "--parallel", "1", "--context-shift", "--spec-type", "none")

    return start


def leave(client: LlamaClient) -> None:
    """Send a plain request and break the connection once a slot works on it."""
    url = client.http.base_url
    body = httpx.Request("POST", url, json=ENDLESS).content
    with socket.create_connection((url.host, url.port or 80)) as connection:
        head = f"POST /completion HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: is_busy(client), "the slot works")


def is_busy(client: LlamaClient) -> bool:
    # Reading the slots is itself a task whose result wakes every waiting handler.
    return any(slot["is_processing"] for slot in client.slots())


def test_the_unpatched_server_never_asks(start_endless: StartEndless, unpatched_server: Path) -> None:
    client = start_endless(unpatched_server).client
    leave(client)
    end = time.monotonic() + NOTICED_SECONDS
    while time.monotonic() < end:
        assert is_busy(client), "noticed; the defect is gone upstream, and the patch with it"


def test_the_patched_server_frees_the_slot(start_endless: StartEndless, patched_server: Path) -> None:
    client = start_endless(patched_server).client
    leave(client)
    eventually(lambda: not is_busy(client), "the slot is free", NOTICED_SECONDS)
