"""Jobs."""

from collections.abc import Generator
from typing import Any

from httpx_sse import ServerSentEvent
from pydantic import ValidationError

from orchestrator.client.connection import FOLLOW_TIMEOUT_SECONDS, Connection, segment, timeout
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import JobEvent, JobLine, JobList, JobProgress, JobView

_SHAPES: dict[str, Any] = {"job": JobView, "line": JobLine, "progress": JobProgress, "end": JobView}


class JobCalls(Connection):
    """Calls of `/api/jobs`."""

    def jobs(self) -> JobList:
        """Live jobs and the last ones that have ended, the newest first."""
        return self._get("/api/jobs", JobList)

    def job(self, id: str) -> JobView:
        """One job."""
        return self._get(f"/api/jobs/{segment(id)}", JobView)

    def cancel_job(self, id: str) -> JobView:
        """Kill its work; the job as it has ended. One that had ended before stays as it is."""
        return self._parse(self._request("DELETE", f"/api/jobs/{segment(id)}"), JobView)

    def job_events(self, id: str, *, after_line: int = 0) -> Generator[JobEvent, None, None]:
        """The job, its lines after `after_line`, lines and progress as they come, at last its `end`.

        A stream that is cut off raises SlipstreamError upstream_failed: ask again with the last line's number.
        """
        path, headers = f"/api/jobs/{segment(id)}/events", {"last-event-id": str(after_line)}
        for event in self._events("GET", path, timeout(FOLLOW_TIMEOUT_SECONDS), headers=headers):
            # An event of a newer orchestrator is none of ours.
            if event.event in _SHAPES:
                yield (parsed := _parse(event))
                if parsed.name == "end":
                    return
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"the events of job {id} broke off before its end")


def _parse(event: ServerSentEvent) -> JobEvent:
    try:
        return JobEvent(event.event, _SHAPES[event.event].model_validate_json(event.data))  # type: ignore[arg-type]
    except ValidationError as e:
        raise SlipstreamError(
            Code.UPSTREAM_FAILED, f"an event {event.event!r} of a job has another shape than this version knows"
        ) from e
