"""How far work on files of this machine is: bytes, rate and time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from orchestrator.cli.columns import Description, bar, fixed, if_wide
from orchestrator.cli.invocation import Output, plain
from orchestrator.units import in_figures

_LINE_SECONDS = 5.0

Heard = Callable[[int, int], None]


@contextmanager
def shown_bytes(output: Output, doing: str) -> Iterator[Heard | None]:
    """What to call with bytes done and in all. A terminal gets a live line, anything else a line now and then; with
    --json there is none."""
    if output.is_json:
        yield None
    elif output.err.is_terminal:
        with live_bar(output, doing) as heard:
            yield heard
    else:
        yield _lines(output, doing)


@contextmanager
def live_bar(output: Output, doing: str) -> Iterator[Heard]:
    """One line that is redrawn, and gone at the end."""
    figures = (
        DownloadColumn(table_column=fixed()),
        TransferSpeedColumn(table_column=fixed()),
        TimeRemainingColumn(table_column=fixed()),
    )
    with Progress(Description(), *if_wide(output.err, bar()), *figures, console=output.err, transient=True) as progress:
        task = progress.add_task(plain(doing), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(output: Output, doing: str) -> Heard:
    began = last = time.monotonic()

    def heard(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now < last + _LINE_SECONDS:
            return
        last, rate = now, done / (now - began)
        figures = in_figures(done, total, rate, (total - done) / rate if rate else None)
        output.err.print(Text(plain(f"{doing}: {figures}")), soft_wrap=True)

    return heard
