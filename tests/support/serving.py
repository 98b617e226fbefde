"""An HTTP server of a test's own, in a thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer

_POLL_SECONDS = 0.02


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Serve while the block lasts; its socket is closed after it."""
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
