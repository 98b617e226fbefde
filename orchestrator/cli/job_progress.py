"""A job, shown while it runs: `follow_job` is what every command calls that waits for one."""

import time
from collections.abc import Iterator
from typing import Protocol

import typer
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from orchestrator.cli.columns import Description, bar, fixed, if_wide
from orchestrator.cli.invocation import INTERRUPTED, Invocation, plain
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import JobEvent, JobLine, JobProgress, JobState, JobView
from orchestrator.units import in_figures

_LINE_SECONDS = 5.0
_RECONNECT_SECONDS = 30.0
_RECONNECT_PAUSE_SECONDS = 0.5
_CUT_OFF = (Code.UPSTREAM_FAILED, Code.UPSTREAM_TIMEOUT)
_CODES = frozenset(Code)


def follow_job(invocation: Invocation, job_id: str) -> JobView:
    """Show a job on stderr until it has ended, and answer with it; with --json nothing is shown.

    A job that did not succeed raises its error. Ctrl-C ends the waiting, not the job.
    """
    display = _display(invocation)
    try:
        for event in events_of(invocation, job_id):
            display.show(event)
    except KeyboardInterrupt:
        display.close()
        invocation.warn(
            f"not waiting any longer; the job goes on (see `slipstream jobs {job_id} --follow`, or end it with "
            f"`slipstream jobs {job_id} --cancel`)"
        )
        raise typer.Exit(INTERRUPTED) from None
    finally:
        display.close()
    assert isinstance(event.data, JobView)
    return succeeded(event.data)


def succeeded(view: JobView) -> JobView:
    """The job itself; its error when it has not succeeded."""
    if view.state is not JobState.SUCCEEDED:
        raise error_of(view)
    return view


def error_of(view: JobView) -> SlipstreamError:
    """Why a job has not succeeded."""
    if view.error is None:
        return SlipstreamError(Code.CONFLICT, f"the job {view.id} ({view.kind} {view.subject}) is {view.state}")
    code = Code(view.error.code) if view.error.code in _CODES else Code.INTERNAL
    return SlipstreamError(code, view.error.message, hint=view.error.hint, details=view.error.details)


def events_of(invocation: Invocation, job_id: str) -> Iterator[JobEvent]:
    """Events of a job up to its end, over a restart of the orchestrator too."""
    last_line, lost_since = 0, None
    has_begun = False
    while True:
        try:
            for event in invocation.client.job_events(job_id, after_line=last_line):
                has_begun, lost_since = True, None
                if isinstance(event.data, JobLine):
                    last_line = event.data.number
                yield event
            return
        except SlipstreamError as e:
            if e.code not in _CUT_OFF or not has_begun:
                raise
            if lost_since is None:
                lost_since = time.monotonic()
                invocation.warn(f"{e.message}; waiting for the orchestrator to come back")
            elif time.monotonic() > lost_since + _RECONNECT_SECONDS:
                raise
        time.sleep(_RECONNECT_PAUSE_SECONDS)


class _Display(Protocol):
    def show(self, event: JobEvent) -> None: ...
    def close(self) -> None: ...


class NoDisplay:
    """For --json."""

    def show(self, event: JobEvent) -> None:
        pass

    def close(self) -> None:
        pass


class JobLineDisplay:
    """For pipes and logs: the job's own lines, a line when phase or file changes, and now and then while bytes come."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._name = ""
        self._last: tuple[str, float] = ("", 0.0)

    def show(self, event: JobEvent) -> None:
        match event.data:
            case JobView() as view:
                self._name = _name(view)
                if event.name == "job":
                    self._tell(_doing(view), _doing(view))
            case JobLine(text=text):
                self._print(text)
            case JobProgress() as progress:
                figures = _figures(progress)
                self._tell(step_of(progress), ", ".join(filter(None, (step_of(progress), figures))))

    def close(self) -> None:
        pass

    def _tell(self, step: str, text: str) -> None:
        now = time.monotonic()
        last_step, at = self._last
        if step != last_step or now > at + _LINE_SECONDS:
            self._last = step, now
            self._print(f"{self._name}: {text}")

    def _print(self, text: str) -> None:
        self._invocation.err.print(Text(plain(text)), soft_wrap=True)


class _WithTotal(ProgressColumn):
    """A column that is blank while nobody knows how many bytes there are."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__(fixed())
        self._column = column

    def render(self, task: Task) -> Text:
        return self._column(task) if task.fields["has_total"] else Text()  # type: ignore[return-value]


class JobLiveDisplay:
    """For a terminal: the job's own lines, and below them one that is redrawn, gone at the end."""

    def __init__(self, invocation: Invocation) -> None:
        self._progress = Progress(
            SpinnerColumn(table_column=fixed()),
            Description(),
            *if_wide(invocation.err, TimeElapsedColumn(fixed()), _WithTotal(bar())),
            TextColumn("{task.fields[figures]}", markup=False),
            console=invocation.err,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, has_total=False, figures="")
        self._name = ""

    def show(self, event: JobEvent) -> None:
        self._progress.start()
        match event.data:
            case JobView() as view:
                self._name = _name(view)
                self._update(_doing(view), view.progress)
            case JobLine(text=text):
                self._progress.console.print(Text(plain(text)), soft_wrap=True)
            case JobProgress() as progress:
                self._update(step_of(progress), progress)

    def close(self) -> None:
        self._progress.stop()

    def _update(self, step: str, progress: JobProgress | None) -> None:
        total = progress.total_bytes if progress else None
        self._progress.update(
            self._task,
            description=plain(f"{self._name}: {step}"),
            total=total,
            completed=progress.done_bytes if progress else 0,
            has_total=total is not None,  # to Rich, no total means the one before
            figures=_figures(progress) if progress else "",
        )


def _display(invocation: Invocation) -> _Display:
    if invocation.is_json:
        return NoDisplay()
    return JobLiveDisplay(invocation) if invocation.err.is_terminal else JobLineDisplay(invocation)


def _name(view: JobView) -> str:
    return f"{view.kind} {view.subject}"


def _doing(view: JobView) -> str:
    return step_of(view.progress) if view.progress else view.state


def step_of(progress: JobProgress) -> str:
    """Phase and file."""
    return f"{progress.phase} {progress.file}" if progress.file else progress.phase


def _figures(progress: JobProgress) -> str:
    rate, left = progress.rate_bytes_per_second, progress.eta_seconds
    return in_figures(progress.done_bytes, progress.total_bytes, rate, left)
