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

    phase: str = Field(description="What is being done, such as `fetching` or `hashing`.", examples=["fetching"])
    file: str | None = Field(
        None, description="Name of the file at hand.", examples=["SmolLM2-135M-Instruct.Q4_1.gguf"]
    )
    done_bytes: int = Field(0, description="Bytes done in this phase.", examples=[41943040])
    total_bytes: int | None = Field(None, description="Bytes of this phase in all, where known.", examples=[98314240])
    rate_bytes_per_second: float | None = Field(
        None, description="Bytes a second lately, where it can be told.", examples=[11534336.0]
    )
    eta_seconds: float | None = Field(None, description="Seconds to the end of the phase at that rate.", examples=[4.9])


class JobError(View):
    """Why a job failed."""

    code: str = Field(description="Stable code, as errors of the API have it.", examples=["source_not_found"])
    message: str = Field(
        description="What was wrong, with what value.", examples=["owner/name has no file x.gguf at main"]
    )
    hint: str | None = Field(
        None, description="What to do about it.", examples=["look at the repository's list of files"]
    )
    details: dict[str, Any] = Field(
        default_factory=dict, description="Further members of the error.", examples=[{"candidates": []}]
    )


class JobLine(View):
    """A line a job has written."""

    number: int = Field(description="From 1, without gaps.", examples=[1])
    at: float = Field(description="When, Unix seconds.", examples=[1790000000.25])
    text: str = Field(description="The line.", examples=["fetching SmolLM2-135M-Instruct.Q4_1.gguf"])


class JobView(View):
    """One job as it is now."""

    id: str = Field(description="Identity.", examples=["8f14e45f"])
    kind: str = Field(description="What it does: pull, graft, verify, gc.", examples=["pull"])
    subject: str = Field(description="What it does that to: a model's name, or a file.", examples=["smollm2-135m"])
    state: JobState = Field(description="Where it is in its life.", examples=["running"])
    created: float = Field(description="When it was asked for, Unix seconds.", examples=[1790000000.25])
    started: float | None = Field(
        None, description="When its present run began, Unix seconds.", examples=[1790000000.5]
    )
    ended: float | None = Field(None, description="When it came to its end, Unix seconds.", examples=[1790000009.75])
    runs: int = Field(
        0, description="Times it was begun; more than once after restarts of the orchestrator.", examples=[1]
    )
    progress: JobProgress | None = Field(None, description="How far it is, while it runs.")
    result: dict[str, Any] | None = Field(
        None, description="What came of it, when it succeeded.", examples=[{"files": []}]
    )
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
