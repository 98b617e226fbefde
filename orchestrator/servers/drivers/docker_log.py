"""The log of a container, read in a thread of its own and handed to the event loop line by line."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from docker.errors import DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from orchestrator.jobs.secrets import without_folders
from orchestrator.servers.drivers.docker_engine import Engine, Entries

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)Z ")
_LINE_LIMIT_BYTES = 1 << 20
# Entries on their way to the loop: a server that floods its log fills neither memory nor the loop's turns.
_ON_THE_WAY = 256
_WAIT_SECONDS = 1.0


class Follower:
    """Follows the log of one container, over broken connections too. `take` gets each line on the event loop."""

    def __init__(self, engine: Engine, container: str, take: Callable[[str], None]) -> None:
        self._engine = engine
        self._container = container
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._room = threading.BoundedSemaphore(_ON_THE_WAY)
        self._entries: Entries | None = None
        self._is_over = False
        self._last_stamp = b""
        self._part = bytearray()
        self._is_dropping = False

    def begin(self, lines: int | str) -> "asyncio.Future[None]":
        """Follow from the last `lines` lines on; done when the container, or the connection, has ended.

        Called again, it goes on where it was.
        """
        ended: asyncio.Future[None] = self._loop.create_future()
        again = self._last_stamp != b""
        thread = threading.Thread(
            target=self._read, args=("all" if again else lines, ended), daemon=True, name=f"log of {self._container}"
        )
        thread.start()
        return ended

    def close(self) -> None:
        """Hand on nothing more, and end the thread."""
        self._is_over = True
        if self._entries is not None:
            self._entries.interrupt()

    def _read(self, lines: int | str, ended: "asyncio.Future[None]") -> None:
        # Whatever a broken connection raises: the watcher asks the engine what has become of the container.
        with suppress(DockerException, RequestException, HTTPError, OSError, ValueError, AttributeError):
            self._entries = entries = self._engine.entries(self._container, lines, _seconds(self._last_stamp))
            try:
                self._pass_on(entries)
            finally:
                entries.close()
        self._call(lambda: None if ended.done() else ended.set_result(None))

    def _pass_on(self, entries: Entries) -> None:
        if self._is_over:
            return
        for entry in entries:
            for line in self._lines_of(entry):
                while not self._room.acquire(timeout=_WAIT_SECONDS):
                    if self._is_over:
                        return
                if not self._call(self._hand_over, line):
                    return
            if self._is_over:
                return

    def _call(self, work: Callable[..., object], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:  # the loop has ended meanwhile
            return False
        return True

    def _hand_over(self, line: str) -> None:
        self._room.release()
        if not self._is_over:
            self._take(line)

    def _lines_of(self, entry: bytes) -> Iterator[str]:
        """Whole lines that end in an entry. The engine splits long lines over entries."""
        if (stamp := _STAMP.match(entry)) is not None:
            # The engine counts seconds alone in `since`: what is not newer was read before the connection broke.
            if stamp[1] <= self._last_stamp and not self._part:
                return
            self._last_stamp, entry = stamp[1], entry[stamp.end() :]
        if len(self._part) + len(entry) > _LINE_LIMIT_BYTES:
            self._part.clear()
            self._is_dropping = True
        if not self._is_dropping or entry.endswith(b"\n"):
            self._part += entry
        if not entry.endswith(b"\n"):
            return
        raw, self._part = bytes(self._part), bytearray()
        if self._is_dropping:
            self._is_dropping = False
            yield "(a log line of more than 1 MiB was dropped)"
            return
        for line in raw.decode(errors="replace").splitlines():
            yield without_folders(line)


def _seconds(stamp: bytes) -> int | None:
    """A time of the engine as Unix seconds, rounded down; None when there is none yet."""
    if not stamp:
        return None
    at = datetime.strptime(stamp[:19].decode(), "%Y-%m-%dT%H:%M:%S")
    return int(at.replace(tzinfo=UTC).timestamp())
