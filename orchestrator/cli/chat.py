"""`slipstream chat`."""

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain
from typing import Annotated, Any

import typer
from rich.text import Text

from orchestrator.cli.invocation import INTERRUPTED, Invocation, invoked, plain, show_error
from orchestrator.cli.options import Json, Model, Url
from orchestrator.cli.progress import shown_progress
from orchestrator.cli.statistics import statistics_line
from orchestrator.client import ChatEnd, Delta
from orchestrator.errors import SlipstreamError


def chat(
    ctx: typer.Context,
    model: Model,
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask. Without it: stdin if it is a pipe, else a conversation.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature; 0 takes the likeliest.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, tokens.")] = None,
    n_max: Annotated[int | None, typer.Option(min=0, help="Longest draft, tokens; 0 drafts nothing.")] = None,
    relaxed_top_n: Annotated[
        int | None, typer.Option(min=0, help="Accept a draft among the target's top N tokens; 0 is strict.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Ask a model, and see what speculation did for the answer; with --json an object a line."""
    given = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "speculative.n_max": n_max,
        "speculative.relaxed_top_n": relaxed_top_n,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    messages = [{"role": "system", "content": system}] if system else []
    is_conversation = prompt is None and sys.stdin.isatty()
    if is_conversation and as_json:
        raise typer.BadParameter("--json needs a PROMPT, or a pipe to read it from")
    with invoked(ctx, url, as_json) as cli:
        conversation = _Conversation(cli, model, messages, fields)
        if is_conversation:
            conversation.run()
            return
        text = sys.stdin.read() if prompt is None else prompt
        if not text.strip():
            raise typer.BadParameter("the prompt is empty")
        if not conversation.ask(text):
            raise typer.Exit(INTERRUPTED)


class _Conversation:
    """Messages so far, each answer among them as far as it came."""

    def __init__(
        self, invocation: Invocation, model: str, messages: list[dict[str, str]], fields: dict[str, Any]
    ) -> None:
        self._invocation = invocation
        self._model = model
        self._messages = messages
        self._fields = fields

    def run(self) -> None:
        """Ask and answer until Ctrl-D. An error ends its answer, not the conversation."""
        with suppress(ImportError):
            import readline  # noqa: F401  (arrow keys and history for `input`)
        self._invocation.err.print("Ctrl-C ends an answer, Ctrl-D the conversation.", style="dim")
        while True:
            try:
                text = input("> ")
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo()
                continue
            if text.strip():
                try:
                    self.ask(text)
                except SlipstreamError as e:
                    show_error(e)

    def ask(self, text: str) -> bool:
        """Print one answer and its statistics; false when Ctrl-C ended it."""
        question = {"role": "user", "content": text}
        answer = _Answer(self._invocation)
        events = self._invocation.client.chat(self._model, [*self._messages, question], self._fields)
        try:
            with closing(events):
                for event in self._with_progress(events):
                    answer.show(event)
        except KeyboardInterrupt:
            answer.finish_line()
            return False
        except SlipstreamError:
            answer.finish_line()
            raise
        finally:
            if answer.text:
                self._messages += [question, {"role": "assistant", "content": answer.text}]
        return True

    def _with_progress(self, events: Iterator[Delta | ChatEnd]) -> Iterator[Delta | ChatEnd]:
        """The same events; while the first is awaited, how far the model's start is."""
        with shown_progress(self._invocation, self._model):
            first = next(events)
        return chain((first,), events)


class _Answer:
    """One answer on its way to the user: text to stdout, reasoning to stderr."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._is_reasoning = False
        self.text = ""

    def show(self, event: Delta | ChatEnd) -> None:
        if isinstance(event, Delta) and not event.is_reasoning:
            # First, since Ctrl-C may come as soon as it is seen.
            self.text += event.text
        if self._invocation.is_json:
            self._invocation.emit({"type": "end" if isinstance(event, ChatEnd) else "delta"} | vars(event))
        elif isinstance(event, ChatEnd):
            self.finish_line()
            self._invocation.say(statistics_line(event.timings), "cyan")
            if event.finish_reason == "length":
                self._invocation.warn("the answer ends at the limit of tokens")
        elif event.is_reasoning:
            self._is_reasoning = True
            self._invocation.err.print(Text(plain(event.text), "dim"), end="", soft_wrap=True)
        else:
            self._end_reasoning()
            typer.echo(plain(event.text), nl=False)

    def finish_line(self) -> None:
        """What comes next stands on a line of its own."""
        self._end_reasoning()
        if self.text and not self.text.endswith("\n") and not self._invocation.is_json:
            typer.echo()

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._invocation.err.print()
            self._is_reasoning = False
