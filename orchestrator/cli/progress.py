"""How far a start is, shown while it runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from orchestrator.cli.invocation import Invocation, plain
from orchestrator.errors import SlipstreamError
from orchestrator.schemas import ServerState, ServerView

_POLL_SECONDS = 0.25
_UNDER_WAY = (ServerState.LOADING, ServerState.WARMING, ServerState.DRAINING, ServerState.STOPPING)


@contextmanager
def shown_progress(invocation: Invocation, model: str) -> Iterator[None]:
    """Show state of a server and elapsed time on stderr, until the block ends.

    A terminal gets a live line, anything else a line at each change; with --json there is none.
    """
    if invocation.is_json:
        yield
        return
    display = LiveDisplay(invocation) if invocation.err.is_terminal else LineDisplay(invocation)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(invocation, model, display, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(_POLL_SECONDS)
        display.close()


class LineDisplay:
    """For pipes and logs: a line when the state changes."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._last: ServerState | None = None

    def show(self, view: ServerView) -> None:
        if view.state is not self._last:
            self._last = view.state
            self._invocation.err.print(Text(plain(f"{view.model}: {view.state}")), soft_wrap=True)

    def close(self) -> None:
        pass


class LiveDisplay:
    """For a terminal: one line that is redrawn, and gone at the end."""

    def __init__(self, invocation: Invocation) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._progress = Progress(*columns, console=invocation.err, transient=True)
        self._task = self._progress.add_task("", total=None)

    def show(self, view: ServerView) -> None:
        self._progress.start()
        self._progress.update(self._task, description=plain(f"{view.model}: {view.state}"))

    def close(self) -> None:
        self._progress.stop()


def _watch(invocation: Invocation, model: str, display: LineDisplay | LiveDisplay, done: threading.Event) -> None:
    try:
        while not done.is_set():
            view = invocation.client.server(model)
            if view.state in _UNDER_WAY and not done.is_set():
                display.show(view)
            done.wait(_POLL_SECONDS)
    except SlipstreamError:
        return  # the command itself meets the same error, or its key opens /v1 only
