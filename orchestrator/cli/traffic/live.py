"""Where a command is, while it works."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.text import Text

from orchestrator.cli.columns import Description, fixed
from orchestrator.cli.invocation import Invocation, plain

Tell = Callable[[Callable[[], str]], None]


@contextmanager
def live_line(cli: Invocation, every_seconds: float = 0.0) -> Iterator[Tell]:
    """Yields what to call with what makes the text, which is made only where it is shown.

    A terminal gets one line that changes, anything else a line each time, or every so many seconds; --json nothing.
    """
    if cli.is_json:
        yield lambda make: None
    elif cli.err.is_terminal:
        columns = (SpinnerColumn(), Description(), TimeElapsedColumn(table_column=fixed()))
        with Progress(*columns, console=cli.err, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda make: progress.update(task, description=plain(make()))
    else:
        yield _lines(cli, every_seconds)


def _lines(cli: Invocation, every_seconds: float) -> Tell:
    last = time.monotonic()

    def tell(make: Callable[[], str]) -> None:
        nonlocal last
        if (now := time.monotonic()) >= last + every_seconds:
            last = now
            cli.err.print(Text(plain(make())), soft_wrap=True)

    return tell
