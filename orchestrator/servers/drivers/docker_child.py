"""A llama-server in a container: its log is followed, its end and its health are watched."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Failure
from orchestrator.servers.drivers.base import Order
from orchestrator.servers.drivers.docker_engine import Engine, Gone
from orchestrator.servers.drivers.docker_log import Follower
from orchestrator.servers.failures import LINES_TO_CLASSIFY, TAIL_LINES, classify, exit_code_of

Json = dict[str, Any]
_LISTENING = "listening on http://"
# How often the engine is asked how a container is, beside the end of its log, which tells of its end at once.
_LOOK_SECONDS = 2.0
# How long a log that brings nothing more is waited for, and how long one that still does.
_LOG_END_SECONDS = 2.0
_LONGEST_LOG_END_SECONDS = 20.0
_KILL_TIMEOUT_SECONDS = 10.0
_KILLED = -9
_log = logging.getLogger(__name__)


class DockerChild:
    """A container that was started or taken over. `found` is the engine's record of it."""

    def __init__(self, engine: Engine, found: Json, url: str, api_key: str, order: Order) -> None:
        self.id: str = found["Id"]
        self.container: str | None = found["Name"].removeprefix("/")
        self.exited = asyncio.Event()
        self.listening = asyncio.Event()
        # One string object for the life of the child: it is in every upstream request.
        self.authorization = f"Bearer {api_key}"
        self._engine = engine
        self._url = url
        self._order = order
        self._first_line = order.log.count
        self._state: Json = found["State"]
        self._exit_code: int | None = None
        self._unhealthy: str | None = None
        self._killed = False
        self._silent_since: float | None = None
        self._follower = Follower(engine, self.id, self._take)
        self._watcher: asyncio.Task[None] | None = None

    def begin(self, lines: int | str) -> None:
        """Follow the log from its last `lines` lines on, and watch."""
        self._watcher = asyncio.create_task(self._watch(lines), name=f"end of {self.container}")

    @property
    def pid(self) -> int | None:
        """Process id of its first process on the host."""
        return self._state.get("Pid") or None

    @property
    def url(self) -> str:
        """Address to talk to; SlipstreamError server_stopped before it listens."""
        if not self.listening.is_set():
            raise SlipstreamError(Code.SERVER_STOPPED, "the server does not listen yet")
        return self._url

    @property
    def is_dead(self) -> bool:
        """Whether its end is known. An engine that does not answer is no proof of it."""
        return self.exited.is_set()

    async def stop(self, grace_seconds: float) -> None:
        """TERM, wait, KILL, remove. Idempotent; when it returns the container is gone.

        SlipstreamError host_failed when the engine does not answer: the container then counts as a leftover.
        """
        if not self.exited.is_set():
            with suppress(SlipstreamError):
                await self._engine.signal(self.id, "TERM")
                await self._ended_within(grace_seconds)
        self._killed = self._killed or not self.exited.is_set()
        await self._engine.remove(self.id)
        await self._ended_within(_KILL_TIMEOUT_SECONDS)
        await self.let_go()
        self.exited.set()

    async def let_go(self) -> None:
        """Watch it no longer; the container goes on."""
        self._follower.close()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    def kill(self) -> None:
        """KILL, without waiting."""
        self._killed = self._killed or not self.exited.is_set()
        self._engine.signal_soon(self.id, "KILL")

    def tail(self) -> tuple[str, ...]:
        """The last lines of this very container: the log goes back to those before it."""
        return self._order.log.tail(TAIL_LINES, after=self._first_line)

    async def host_bytes(self) -> int | None:
        """Resident memory of its processes, file pages of mapped weights included."""
        try:
            return await self._engine.ask("count the memory of a container", lambda c: _memory(c, self.id))
        except (SlipstreamError, Gone):
            return None

    def failure(self) -> Failure:
        """Why it ended, from the engine's record of it and its last lines."""
        if self._unhealthy is not None:
            return Failure(
                reason="unhealthy",
                message=f"the health check of its image failed: {self._unhealthy}"[:500],
                exit_code=self._exit_code,
                log_tail=self.tail(),
            )
        oom = bool(self._state.get("OOMKilled")) and self._exit_code == _KILLED
        lines = self._order.log.tail(LINES_TO_CLASSIFY, after=self._first_line)
        return classify(self._exit_code, lines, oom=oom, ours=self._killed)

    async def _ended_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()

    def _take(self, line: str) -> None:
        self._order.log.append(line)
        self._order.on_line()
        if _LISTENING in line:
            self.listening.set()

    async def _watch(self, lines: int | str) -> None:
        """Until it has ended. Asks, whenever its log ends and every few seconds, how it is."""
        reading = self._follower.begin(lines)
        while True:
            await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
            was_reading = not reading.done()
            if await self._has_ended():
                await self._read_out(reading)
                self.exited.set()
                return
            if not was_reading:
                # The connection broke, not the container.
                await asyncio.sleep(_LOOK_SECONDS)
                reading = self._follower.begin(lines)

    async def _read_out(self, reading: "asyncio.Future[None]") -> None:
        """Until the log of an ended container is read: its last lines tell why, and a flood comes before them."""
        log, until = self._order.log, time.monotonic() + _LONGEST_LOG_END_SECONDS
        before = -1
        while not reading.done() and log.count != before and time.monotonic() < until:
            before = log.count
            await asyncio.wait({reading}, timeout=_LOG_END_SECONDS)

    async def _has_ended(self) -> bool:
        try:
            state = (await self._engine.inspect(self.id))["State"]
        except Gone:
            self._exit_code = _KILLED if self._exit_code is None else self._exit_code
            return True
        except SlipstreamError as e:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                _log.warning("%s goes on as far as is known: %s", self.container, e.message)
            return False
        if self._silent_since is not None:
            _log.info("%s: its engine answers again", self.container)
            self._silent_since = None
        self._state = state
        if not (state.get("Running") or state.get("Paused") or state.get("Restarting")):
            self._exit_code = exit_code_of(int(state.get("ExitCode", 0)))
            return True
        health = state.get("Health") or {}
        if health.get("Status") == "unhealthy" and self._unhealthy is None:
            probes = health.get("Log") or [{}]
            self._unhealthy = str(probes[-1].get("Output") or "no output").strip()
            _log.warning("%s is unhealthy by the check of its image: %s", self.container, self._unhealthy)
            self._engine.signal_soon(self.id, "KILL")
        return False


def _memory(client: Any, container: str) -> int | None:
    """What `ps` counts on the host, else the control group, which leaves out pages that others have read first."""
    with suppress(Exception):
        listed = client.top(container, "-eo pid,rss")
        return sum(int(row[1]) for row in listed["Processes"]) << 10 or None
    used = client.stats(container, stream=False, one_shot=True)["memory_stats"].get("usage")
    return None if used is None else int(used)
