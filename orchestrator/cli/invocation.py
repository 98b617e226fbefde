"""What a command works with: the client, and where output goes."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.client import Client
from orchestrator.errors import SlipstreamError

# Exit status of a command that Ctrl-C ended, as shells have it.
INTERRUPTED = 130
# Wide enough for every table of ours: a pipe has no width, and a truncated name is of no use to what reads it.
_PIPE_WIDTH = 240
# Text of a model or a log must not steer the terminal. Line feed and tab are harmless, carriage return is not shown.
_PICTURES: dict[int, int | None] = {c: 0x2400 + c for c in range(0x20)}
_PICTURES |= {c: 0xFFFD for c in range(0x80, 0xA0)} | {0x7F: 0x2421, 0x0D: None}
del _PICTURES[0x0A], _PICTURES[0x09]


class Invocation:
    """Results go to stdout, as JSON or for people; everything else goes to stderr."""

    def __init__(self, client: Client, is_json: bool) -> None:
        self.client = client
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

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
        """A table for people on stdout."""
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(plain(cell)) if isinstance(cell, str) else cell for cell in row))
        self.out.print(table)


@contextmanager
def invoked(ctx: typer.Context, url: str | None, is_json: bool) -> Iterator[Invocation]:
    """An invocation of one command; the command's own --url goes before that of `slipstream --url`."""
    with Client(url or ctx.obj) as client:
        yield Invocation(client, is_json)


def console(*, stderr: bool) -> Console:
    """A console that colours nothing by itself."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def plain(text: str) -> str:
    """`text` with control characters shown instead of obeyed."""
    return text.translate(_PICTURES)


def show_error(error: SlipstreamError) -> None:
    """Message, last log lines where there are some, then the hint, on stderr."""
    err = console(stderr=True)
    err.print(Text.assemble(("error: ", "bold red"), plain(error.message)), soft_wrap=True)
    for line in error.details.get("log_tail", ()):
        err.print(Text(f"  {plain(str(line))}", "dim"), soft_wrap=True)
    if error.hint:
        err.print(Text(f"hint: {plain(error.hint)}"), soft_wrap=True)
