"""Columns of live lines, which stay one line in a narrow terminal too."""

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

_WIDE_COLUMNS = 110


def fixed() -> Column:
    """For what is shown whole."""
    return Column(no_wrap=True)


def bar() -> ProgressColumn:
    """A bar of one width."""
    return BarColumn(bar_width=30, table_column=fixed())


def if_wide(console: Console, *columns: ProgressColumn) -> tuple[ProgressColumn, ...]:
    """These columns; none of them where the figures take all the room."""
    return columns if console.width >= _WIDE_COLUMNS else ()


class Description(TextColumn):
    """What is done: it gives way to the figures beside it."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False, table_column=Column())

    def render(self, task: Task) -> Text:
        """The text, to be cut off at the width that is left."""
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text
