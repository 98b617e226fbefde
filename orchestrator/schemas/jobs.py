"""Jobs: long work that outlives the request that asked for it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from orchestrator.schemas.base import View


class JobState(StrEnum):
    """Where a job is in its life. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class JobProgress(View):
    """How far a job is in its present phase."""

    phase: str = Field(description="What is being done, such as `fetching` or `hashing`.")
    file: str | None = Field(None, description="Name of the file at hand.")
    done_bytes: int = Field(0, description="Bytes done in this phase.")
    total_bytes: int | None = Field(None, description="Bytes of this phase in all, where known.")
    rate_bytes_per_second: float | None = Field(None, description="Bytes a second lately, where it can be told.")
    eta_seconds: float | None = Field(None, description="Seconds to the end of the phase at that rate.")


class JobError(View):
    """Why a job failed."""

    code: str = Field(description="Stable code, as errors of the API have it.")
    message: str = Field(description="What was wrong, with what value.")
    hint: str | None = Field(None, description="What to do about it.")
    details: dict[str, Any] = Field(default_factory=dict, description="Further members of the error.")


class JobLine(View):
    """A line a job has written."""

    number: int = Field(description="From 1, without gaps.")
    at: float = Field(description="When, Unix seconds.")
    text: str = Field(description="The line.")


class JobView(View):
    """One job as it is now."""

    id: str = Field(description="Identity.")
    kind: str = Field(description="What it does: pull, graft, verify, gc.")
    subject: str = Field(description="What it does that to: a model's name, or a file.")
    state: JobState = Field(description="Where it is in its life.")
    created: float = Field(description="When it was asked for, Unix seconds.")
    started: float | None = Field(None, description="When its present run began, Unix seconds.")
    ended: float | None = Field(None, description="When it came to its end, Unix seconds.")
    runs: int = Field(0, description="Times it was begun; more than once after restarts of the orchestrator.")
    progress: JobProgress | None = Field(None, description="How far it is, while it runs.")
    result: dict[str, Any] | None = Field(None, description="What came of it, when it succeeded.")
    error: JobError | None = Field(None, description="Why not, when it failed.")


class JobList(View):
    """Jobs, the newest first."""

    jobs: tuple[JobView, ...] = Field(description="Live ones and those kept.")


@dataclass(frozen=True)
class JobEvent:
    """What a follower of a job hears: `job` first, `line` and `progress` as they come, `end` last.

    `data` is a JobView for `job` and `end`, a JobLine for `line`, a JobProgress for `progress`.
    """

    name: Literal["job", "line", "progress", "end"]
    data: JobView | JobLine | JobProgress
