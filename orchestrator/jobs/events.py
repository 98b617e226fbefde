"""What a child writes on its stdout, one JSON object a line (see child.py)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt, TypeAdapter

from orchestrator.schemas import JobError


class PhaseEvent(BaseModel):
    """A phase begins."""

    event: Literal["phase"]
    phase: str
    file: str | None = None
    total_bytes: NonNegativeInt | None = None
    done_bytes: NonNegativeInt = 0


class AdvanceEvent(BaseModel):
    """Bytes done in the phase so far."""

    event: Literal["advance"]
    done_bytes: NonNegativeInt


class DownloadEvent(BaseModel):
    """Bytes that came over the network since the last such event, from a kind of source."""

    event: Literal["download"]
    source: str
    count_bytes: NonNegativeInt


class LineEvent(BaseModel):
    """A line for people."""

    event: Literal["line"]
    text: str


class ResultEvent(BaseModel):
    """The work is done."""

    event: Literal["result"]
    result: dict[str, Any]


class ErrorEvent(BaseModel):
    """The work has failed."""

    event: Literal["error"]
    error: JobError


ChildEvent = PhaseEvent | AdvanceEvent | DownloadEvent | LineEvent | ResultEvent | ErrorEvent
_READER: TypeAdapter[ChildEvent] = TypeAdapter(Annotated[ChildEvent, Field(discriminator="event")])


def read_event(line: bytes) -> ChildEvent:
    """Parse a line; ValueError if it is no event."""
    return _READER.validate_json(line)
