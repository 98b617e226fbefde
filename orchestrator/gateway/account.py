"""What is told of one request when it is over: a line of the log, its part of the metrics, its trace."""

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from orchestrator.gateway.asking import Ask
from orchestrator.gateway.dialects import Dialect
from orchestrator.gateway.pieces import Pieces
from orchestrator.gateway.routes import Work, is_listed
from orchestrator.gateway.tail import NOTHING, Figures, figures_of
from orchestrator.telemetry import Measured
from orchestrator.telemetry.logs import tell

if TYPE_CHECKING:
    from orchestrator.telemetry.spans import Part, Trace

_LONGEST_PATH = 100
_NO_PART: AbstractContextManager[None] = nullcontext()
_log = logging.getLogger("slipstream.requests")


@dataclass(slots=True, eq=False)
class Account:
    """Filled by whoever knows, with nothing that a client or a model has said but the request's id.

    Times are those of `time.monotonic`: `read` when the request had been read, `ended` when the ASGI server had the
    last byte of its answer. `status` stays 0 when there was no answer; `error` is the code of one of ours.
    """

    request_id: str
    method: str
    path: str
    trace: "Trace | None" = None
    read: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    status: int = 0
    model: str = ""
    outcome: str = ""
    error: str = ""
    waited_seconds: float | None = None
    slot: int | None = None
    pieces: Pieces = field(default_factory=Pieces)
    figures: Figures = NOTHING
    first_token_seconds: float | None = None

    def asks(self, ask: Ask) -> None:
        """The request has been read."""
        self.read = time.monotonic()
        self.model = ask.spec.name
        self.pieces.shows_progress = ask.fields.get("return_progress") is True
        if self.trace is not None:
            self.trace.note({"gen_ai.request.model": self.model, "gen_ai.operation.name": ask.route.operation})

    def waited(self, seconds: float) -> None:
        """For a server; a second time when the first one had died meanwhile."""
        self.waited_seconds = (self.waited_seconds or 0.0) + seconds

    def look(self, ask: Ask, outcome: str) -> None:
        """The answer is over: what it says of itself is looked at, once."""
        if ask.route.work is Work.GENERATE and outcome == "ok":
            self.figures = figures_of(self.pieces.end, has_timings=ask.route.dialect is not Dialect.ANTHROPIC)
            self.first_token_seconds = self._first_token(ask)

    def measured(self) -> Measured:
        """What the metrics are told, at the very end; request and tokens only of a whole answer."""
        self.ended = time.monotonic()
        pieces = self.pieces
        if pieces.is_stream and pieces.first:
            self.first_token_seconds = pieces.first - self.read
        return Measured(
            self.ended - self.read if self.outcome == "ok" else None,
            self.first_token_seconds,
            self.figures.per_token_seconds,
            pieces.gaps,
            self.exemplar,
        )

    @property
    def exemplar(self) -> dict[str, str] | None:
        """What leads from the metrics to its trace, if that is kept."""
        return {"trace_id": self.trace.trace_id} if self.trace is not None and self.trace.is_kept else None

    def part(self, name: str, *, is_client: bool = False) -> "AbstractContextManager[Part | None]":
        """A span of its trace, None where there is no trace."""
        return _NO_PART if self.trace is None else self.trace.span(name, is_client=is_client)

    def tell(self) -> None:
        """Once, when nothing of it is left to do."""
        self.ended = self.ended or time.monotonic()
        self.outcome = self.outcome or _outcome(self.status)
        if self.trace is not None:
            self.trace.note({"slipstream.outcome": self.outcome, "slipstream.slot": self.slot})
            self.trace.end(self.status, self.error or ("" if self.outcome == "ok" else self.outcome))
        level = logging.WARNING if self.outcome == "server_error" else logging.INFO
        fields = {name: value for name, value in self._fields() if value is not None and value != ""}
        tell(_log, level, f"{fields['method']} {fields['route']} {self.outcome}", fields)

    def usage(self) -> dict[str, Any]:
        """What the answer says of itself, as attributes of a span."""
        return {
            "gen_ai.usage.input_tokens": self.figures.input_tokens,
            "gen_ai.usage.output_tokens": self.figures.output_tokens,
            "slipstream.drafted_tokens": self.figures.drafted_tokens,
            "slipstream.accepted_tokens": self.figures.accepted_tokens,
        }

    def _first_token(self, ask: Ask) -> float | None:
        """vLLM counts every answer, streamed or not.

        One that is not streamed comes when its last token is there, `predicted_ms` after the first one. That says
        nothing where several sequences stand in one answer: one may have begun after another.
        """
        predicted_seconds = self.figures.predicted_seconds
        if predicted_seconds is None or not ask.is_single:
            return None
        return max(0.0, self.pieces.first - self.read - predicted_seconds)

    def _fields(self) -> tuple[tuple[str, str | int | float | None], ...]:
        figures = self.figures
        return (
            ("method", self.method[:_LONGEST_PATH]),
            ("route", told_path(self.path)),
            ("model", self.model),
            ("status", self.status or None),
            ("outcome", self.outcome),
            ("error", self.error),
            ("seconds", _rounded(self.ended - self.read)),
            ("waited_seconds", _rounded(self.waited_seconds)),
            ("time_to_first_token_seconds", _rounded(self.first_token_seconds)),
            ("input_tokens", figures.input_tokens),
            ("output_tokens", figures.output_tokens),
            ("drafted_tokens", figures.drafted_tokens),
            ("accepted_tokens", figures.accepted_tokens),
            ("slot", self.slot),
            ("request_id", self.request_id),
            ("trace_id", self.trace.trace_id if self.trace is not None else None),
        )


def account_of(scope: Scope) -> Account:
    """The account that was opened at the door; one that nobody is told where there is no door."""
    found = scope.get("state", {}).get("account")
    return found if isinstance(found, Account) else Account("", scope["method"], scope["path"])


def told_path(path: str) -> str:
    """A path as it may stand in logs and spans: ours, or of a stranger's what is printable of its beginning."""
    return path if is_listed(path) else ascii(path[:_LONGEST_PATH])[1:-1]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _outcome(status: int) -> str:
    if not status:
        return "cancelled"
    return "ok" if status < 400 else "client_error" if status < 500 else "server_error"
