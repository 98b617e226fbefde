"""Servers in this process that answer one request a connection, as raw as a test wants it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from orchestrator.servers.reading import Target
from orchestrator.servers.scheduling import Phase

KEY = "Bearer only-ours"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def ok(page: str) -> bytes:
    body = page.encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@asynccontextmanager
async def answering(answer: Answer, heard: list[bytes] | None = None) -> AsyncIterator[int]:
    """The port of a server that answers by `answer`; `heard` gets the heads of requests."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if heard is not None:
                heard.append(head)
            await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def target(port: int, number: int = 1) -> Target:
    return Target(number, "127.0.0.1", port, KEY)


class Told:
    """A server whose page a test sets; it waits for `gate` before it answers."""

    def __init__(self, page: str = "") -> None:
        self.page = page
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        page = self.page
        await self.gate.wait()
        writer.write(ok(page))
        await writer.drain()


def child_at(port: int) -> Any:
    return SimpleNamespace(url=f"http://127.0.0.1:{port}", authorization=KEY, is_dead=False)


def launch_of(model: str, spec_type: str = "draft-mtp", key: str = "flags") -> Any:
    return SimpleNamespace(spec=SimpleNamespace(name=model), spec_type=spec_type, key=key)


def instance_at(port: int, number: int, launch: Any, phase: Phase = Phase.READY) -> Any:
    return SimpleNamespace(number=number, child=child_at(port), phase=phase, goal=SimpleNamespace(launch=launch))


def server_of(model: str, *instances: Any) -> Any:
    """A server record; the last instance that is ready serves."""
    serving = next((i for i in reversed(instances) if i.phase is Phase.READY), None)
    return SimpleNamespace(model=model, instances=list(instances), serving=serving)
