"""The last log lines of a server, and followers of what comes."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

_FOLLOWER_LINES = 1000


class LogBuffer:
    """A ring of lines. A follower that cannot keep up loses lines, never the server its pace."""

    def __init__(self, capacity: int) -> None:
        self._lines: deque[str] = deque(maxlen=capacity)
        self._followers: set[asyncio.Queue[str | None]] = set()
        self.count = 0
        self._closed = False

    def append(self, line: str) -> None:
        """Add a line and hand it to every follower."""
        self.count += 1
        self._lines.append(line)
        for queue in self._followers:
            if not queue.full():
                queue.put_nowait(line)

    def tail(self, lines: int, *, after: int = 0) -> tuple[str, ...]:
        """The last `lines` lines, oldest first; none of the first `after` that were ever added."""
        lines = min(lines, self.count - after)
        return tuple(self._lines)[-lines:] if lines > 0 else ()

    async def follow(self, lines: int) -> AsyncIterator[str]:
        """The last `lines` lines, then every new one until `close`."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_FOLLOWER_LINES)
        past = self.tail(lines)
        if self._closed:
            queue.put_nowait(None)
        self._followers.add(queue)
        try:
            for line in past:
                yield line
            while (line_or_end := await queue.get()) is not None:
                yield line_or_end
        finally:
            self._followers.discard(queue)

    def close(self) -> None:
        """End every follower, those to come too."""
        self._closed = True
        for queue in self._followers:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
