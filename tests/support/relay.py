"""A long line on loopback: a TCP relay that delays bytes both ways and lets so many be under way on a connection.

It stands in for `tc netem` where the kernel has none. The window is what a receiver's buffer is on a real line: one
connection gets at most `window_bytes` a round trip.
"""

import socket
import threading
import time
from collections import deque
from contextlib import suppress
from queue import SimpleQueue

_CHUNK_BYTES = 256 << 10


class Relay:
    """Listens on a port of its own and passes on to `target_port`, `delay_seconds` later each way."""

    def __init__(self, target_port: int, delay_seconds: float, window_bytes: int) -> None:
        self._target_port = target_port
        self._delay_seconds = delay_seconds
        self._window_bytes = window_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target_port))
                for source, sink in ((near, far), (far, near)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._pump(source, sink)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        threading.Thread(target=self._take, args=(source, under_way), daemon=True).start()
        threading.Thread(target=self._give, args=(sink, under_way), daemon=True).start()

    def _take(self, source: socket.socket, under_way: "SimpleQueue[tuple[float, bytes]]") -> None:
        """Read as long as the window has room: a byte leaves it when its acknowledgement would be back."""
        held: deque[tuple[float, int]] = deque()
        held_bytes = 0
        data = b"-"
        while data:
            while held_bytes >= self._window_bytes or (held and held[0][0] <= time.monotonic()):
                free_at, count = held.popleft()
                time.sleep(max(0.0, free_at - time.monotonic()))
                held_bytes -= count
            try:
                data = source.recv(min(_CHUNK_BYTES, self._window_bytes - held_bytes))
            except OSError:
                data = b""
            now = time.monotonic()
            under_way.put((now + self._delay_seconds, data))
            held.append((now + 2 * self._delay_seconds, len(data)))
            held_bytes += len(data)

    def _give(self, sink: socket.socket, under_way: "SimpleQueue[tuple[float, bytes]]") -> None:
        with suppress(OSError):
            while True:
                due, data = under_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
