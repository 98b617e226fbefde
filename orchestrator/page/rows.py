"""What the page shows of one model, and what can be done with it."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.page.slots import Slot
from orchestrator.schemas import Desired, JobView, ModelView, ServerState, ServerView
from orchestrator.units import in_bytes, in_seconds, times_in_a_row

_COMING = (ServerState.LOADING, ServerState.WARMING)
_GOING = (ServerState.DRAINING, ServerState.STOPPING)
_DOWN = (ServerState.STOPPED, ServerState.FAILED)
_BY_INTEREST = (ServerState.READY, *_COMING, *_GOING, ServerState.FAILED, ServerState.STOPPED)


@dataclass(frozen=True)
class Action:
    """A button: the call it makes, `METHOD path`. With `asks` what would happen is shown before."""

    label: str
    call: str
    body: dict[str, str] | None = None
    asks: bool = False


@dataclass(frozen=True)
class Remark:
    """A sentence about a server."""

    tone: Literal["error", "warn", "faint"]
    text: str


@dataclass(frozen=True)
class Load:
    """How far a start is; `share` (0 to 1) is None where no earlier start tells."""

    words: str
    share: float | None


@dataclass(frozen=True)
class Row:
    """One model. `model` is None when its model file is gone and its server still runs."""

    server: ServerView
    model: ModelView | None
    now: float
    pull: JobView | None = None
    others_run: bool = False
    slots: tuple[Slot, ...] = ()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.server.model

    @property
    def is_up(self) -> bool:
        """Whether requests find it loaded."""
        return self.server.state is ServerState.READY

    @property
    def facts(self) -> tuple[str, ...]:
        """What stands beside its state."""
        return tuple(self._facts())

    def _facts(self) -> Iterator[str]:
        server = self.server
        if server.state not in _COMING:
            yield f"for {age(server.since, self.now)}"
        if server.instances:
            yield "no speculation" if server.spec_type == "none" else server.spec_type
            yield from dict.fromkeys(i.host for i in server.instances if i.host != "local")
        if server.running:
            yield _counted(server.running, "request")

    @property
    def load(self) -> Load | None:
        """How far its start is, while it starts."""
        server = self.server
        if server.state not in _COMING:
            return None
        seconds = server.loading_seconds or 0.0
        expected = server.expected_load_seconds
        words = in_seconds(seconds)
        if expected and seconds <= expected:
            words += f" of about {in_seconds(expected)}"
        elif expected:
            words += f", {in_seconds(expected)} expected"
        why = next((i.why for i in server.instances if i.state in _COMING and i.why), "")
        share = min(0.99, seconds / expected) if expected else None
        return Load(f"{words}: {why}" if why else words, share)

    @property
    def actions(self) -> tuple[Action, ...]:
        """What can be done with it now."""
        return tuple(self._actions())

    def _actions(self) -> Iterator[Action]:
        path, state = f"api/servers/{self.name}", self.server.state
        if self.server.quarantine is not None:
            yield Action("Clear quarantine", f"POST {path}/clear")
        if self.model is not None and state in _DOWN:
            if self.model.missing and self.pull is None:
                yield Action("Pull", f"POST api/models/{self.name}/pull")
            elif not self.model.missing:
                yield Action("Start", f"POST {path}/start")
                if self.others_run:
                    yield Action("Swap in", "POST api/swap", {"start": self.name}, asks=True)
        elif self.model is not None and state in _GOING:
            yield Action("Start", f"POST {path}/start")
        elif self.model is not None and state is ServerState.READY:
            yield Action("Restart", f"POST {path}/restart")
        if state in (*_COMING, ServerState.READY) or (state is ServerState.FAILED and self._is_wanted):
            yield Action("Stop", f"POST {path}/stop")

    @property
    def _is_wanted(self) -> bool:
        return self.server.desired is Desired.RUNNING

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What an operator should know, the gravest first."""
        return tuple(self._remarks())

    def _remarks(self) -> Iterator[Remark]:
        server = self.server
        if server.failure is not None:
            yield Remark("error", server.failure.message)
        if server.quarantine is not None:
            left = in_seconds(max(0.0, server.quarantine.until - self.now))
            times = times_in_a_row(server.quarantine.strikes)
            yield Remark("warn", f"In quarantine for {left} more, as it failed {times}.")
        if server.waiting and server.waits_for:
            wait = "waits" if server.waiting == 1 else "wait"
            yield Remark("warn", f"{_counted(server.waiting, 'request')} {wait}: {server.waits_for}.")
        yield from (Remark("error", hazard.message) for hazard in server.hazards if hazard.refuses)
        yield from (Remark("warn", warning) for warning in server.warnings)
        if self.model is None:
            yield Remark("warn", "Its model file is gone.")
        elif self.model.missing and self.pull is None:
            yield Remark("faint", f"Not on disk: {', '.join(self.model.missing)}.")
        elif self.pull is not None:
            yield Remark("faint", f"Its files are being brought{_share(self.pull)}.")
        handled = [hazard for hazard in server.hazards if not hazard.refuses]
        if handled:
            is_are = "is" if len(handled) == 1 else "are"
            yield Remark("faint", f"{_counted(len(handled), 'known hazard')} {is_are} provided for, see its details.")

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """Names and values of what is rarely asked for."""
        return tuple((name, value) for name, value in self._details() if value)

    def _details(self) -> Iterator[tuple[str, str]]:
        server, spec = self.server, self.model.spec if self.model else None
        if spec is not None:
            yield "Also called", ", ".join(spec.aliases)
            yield "Speculation wanted", spec.speculation.type
        yield "Wanted", "kept running" if self._is_wanted else "started by the first request"
        for instance in server.instances:
            what = f"on {instance.host}, pid {instance.pid}" if instance.pid else f"on {instance.host}"
            sizes = ", ".join(f"{device} {in_bytes(size)}" for device, size in sorted(instance.needs_bytes.items()))
            set_aside = f"; memory set aside: {sizes}" if sizes else ""
            yield f"Instance {instance.id}", f"{instance.state}, {what}{set_aside}"
        yield from ((f"Hazard {hazard.id}", hazard.message) for hazard in server.hazards)
        yield "Last start", "" if server.start_seconds is None else f"{server.start_seconds:.1f} s"
        yield "Restarts", str(server.restarts)
        yield "Flags set over the API", ", ".join(f"{name}={value}" for name, value in server.flags.items())
        if server.failure is not None:
            yield "Failed with", server.failure.reason
        yield "Arguments", shlex.join(server.argv)


def counts(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """How many servers are in each state, of those states that some are in."""
    states = [row.server.state for row in rows]
    return [(state.value, states.count(state)) for state in _BY_INTEREST if state in states]


def age(at: float, now: float) -> str:
    """How long ago, in one coarse unit, so that it does not change at each look: `8 s`, `3 min`, `2 h`, `4 d`."""
    seconds = max(0, round(now - at))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _share(job: JobView) -> str:
    progress = job.progress
    if progress is None or not progress.total_bytes:
        return ""
    return f": {progress.phase}, {progress.done_bytes / progress.total_bytes:.0%}"
