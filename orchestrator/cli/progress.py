"""How far a start is, shown while it runs."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from orchestrator.cli.invocation import Invocation, plain
from orchestrator.errors import SlipstreamError
from orchestrator.schemas import ServerState, ServerView

_POLL_SECONDS = 0.25
_LINE_SECONDS = 5.0
_UNDER_WAY = (ServerState.FETCHING, ServerState.LOADING, ServerState.WARMING, ServerState.STOPPING)


@contextmanager
def shown_progress(invocation: Invocation, model: str) -> Iterator[None]:
    """Show state, elapsed time and fetched bytes of a server on stderr, until the block ends.

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
    """For pipes and logs: a line when the state changes, and now and then while bytes come."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._last: tuple[ServerState, float] | None = None

    def show(self, view: ServerView) -> None:
        now = time.monotonic()
        if (
            self._last
            and self._last[0] is view.state
            and (view.progress is None or now < self._last[1] + _LINE_SECONDS)
        ):
            return
        self._last = (view.state, now)
        size = f", {view.progress.done_bytes / 1e6:.1f} MB" if view.progress else ""
        self._invocation.err.print(Text(plain(f"{view.model}: {view.state}{size}")), soft_wrap=True)

    def close(self) -> None:
        pass


class _WhileFetching(ProgressColumn):
    """A column that is blank while no file is being fetched."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> Text:
        return self._column(task) if task.fields["fetching"] else Text()  # type: ignore[return-value]


class LiveDisplay:
    """For a terminal: one line that is redrawn, and gone at the end."""

    def __init__(self, invocation: Invocation) -> None:
        fetching = (BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            *(_WhileFetching(column) for column in fetching),
            console=invocation.err,
            transient=True,
        )
        self._task = self._progress.add_task("", fetching=False, total=None)

    def show(self, view: ServerView) -> None:
        self._progress.start()
        fetched = view.progress
        self._progress.update(
            self._task,
            description=plain(f"{view.model}: {view.state}"),
            fetching=fetched is not None,
            completed=fetched.done_bytes if fetched else None,
            total=fetched.total_bytes if fetched else None,
        )

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
