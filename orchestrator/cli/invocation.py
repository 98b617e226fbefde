"""What a command works with: the client, and where output goes."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from orchestrator.client import Client
from orchestrator.errors import SlipstreamError

# Exit status of a command that Ctrl-C ended, as shells have it.
INTERRUPTED = 130
# Text of a model or a log must not steer the terminal. Line feed and tab are harmless, carriage return is not shown.
_PICTURES: dict[int, int | None] = {c: 0x2400 + c for c in range(0x20)}
_PICTURES |= {c: 0xFFFD for c in range(0x80, 0xA0)} | {0x7F: 0x2421, 0x0D: None}
del _PICTURES[0x0A], _PICTURES[0x09]
_NARROWEST_COLUMN = 16
_IN_CELLS = {0x0A: 0x240A, 0x09: 0x2409}


class Output:
    """Results go to stdout, as JSON or for people; everything else goes to stderr."""

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        self.out = console(stderr=False)
        self.err = console(stderr=True)

    def emit(self, value: BaseModel | Any) -> None:
        """One JSON value on one line of stdout."""
        data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        typer.echo(json.dumps(data, ensure_ascii=False))

    def say(self, text: str, style: str = "") -> None:
        """A line for people on stdout."""
        self.out.print(Text(plain(text), style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line on stderr."""
        self.err.print(Text(plain(text), "yellow"), soft_wrap=True)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, elastic: Iterable[int] = ()
    ) -> None:
        """A table for people on stdout, a line a row. Only `elastic` columns are cut off, in a narrow terminal: who
        sees an id or a name wants to use it."""
        lines = [[Text(column, "bold") for column in columns]]
        lines += [[_cell(cell) for cell in row] for row in rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
        for column in elastic if self.out.is_terminal else ():
            missing = sum(widths) + 2 * (len(widths) - 1) - self.out.width
            widths[column] = min(widths[column], max(_NARROWEST_COLUMN, widths[column] - missing))
        for line in lines:
            for cell, width in zip(line, widths, strict=True):
                cell.truncate(width, overflow="ellipsis", pad=True)
            text = Text("  ").join(line)
            text.rstrip()
            self.out.print(text, soft_wrap=True)


class Invocation(Output):
    """A command that talks to the orchestrator."""

    def __init__(self, client: Client, is_json: bool) -> None:
        super().__init__(is_json)
        self.client = client


@contextmanager
def invoked(ctx: typer.Context, url: str | None, is_json: bool) -> Iterator[Invocation]:
    """An invocation of one command; the command's own --url goes before that of `slipstream --url`."""
    with Client(url or ctx.obj) as client:
        yield Invocation(client, is_json)


def console(*, stderr: bool) -> Console:
    """A console that colours nothing by itself."""
    return Console(stderr=stderr, highlight=False)


def plain(text: str) -> str:
    """`text` with control characters shown instead of obeyed."""
    return text.translate(_PICTURES)


def _cell(content: str | Text) -> Text:
    return Text(plain(content).translate(_IN_CELLS)) if isinstance(content, str) else content


def show_error(error: SlipstreamError) -> None:
    """Message, last log lines where there are some, then the hint, on stderr."""
    err = console(stderr=True)
    err.print(Text.assemble(("error: ", "bold red"), plain(error.message)), soft_wrap=True)
    for line in error.details.get("log_tail", ()):
        err.print(Text(f"  {plain(str(line))}", "dim"), soft_wrap=True)
    if error.hint:
        err.print(Text(f"hint: {plain(error.hint)}"), soft_wrap=True)
