"""An overview with something of everything, made without a server."""

from typing import Any

from orchestrator.page.overview import Overview
from orchestrator.page.rows import Row
from orchestrator.page.slots import Slot, slots_of
from orchestrator.schemas import (
    Desired,
    Failure,
    FileProblem,
    Hazard,
    InstanceView,
    JobError,
    JobProgress,
    JobState,
    JobView,
    ModelSpec,
    ModelSpeculation,
    ModelView,
    Quarantine,
    ServerState,
    ServerView,
    Transition,
)

NOW = 1_790_000_000.0
HOSTILE = "<script>taken()</script>"


def sums(
    predicted: int, drafted: int, accepted: int, *, rate: float, ratio: float | None = None, length: float | None = None
) -> dict[str, Any]:
    counted = {"predicted_tokens": predicted, "draft_tokens": drafted, "accepted_tokens": accepted}
    told = {"tokens_per_second": rate, "acceptance_ratio": ratio, "mean_acceptance_length": length}
    return counted | told | {"predicted_seconds": 1.0, "verification_steps": drafted // 3}


def model(name: str, missing: tuple[str, ...] = (), **fields: Any) -> ModelView:
    spec = ModelSpec.model_validate({"name": name, "source": {"path": f"{name}.gguf"}} | fields)
    return ModelView(spec=spec, present=not missing, missing=missing, state=ServerState.STOPPED)


def server(name: str, state: ServerState, **fields: Any) -> ServerView:
    running = {} if state in (ServerState.STOPPED, ServerState.FAILED) else {"instances": (instance(state),)}
    given: dict[str, Any] = {"desired": Desired.STOPPED, "flags": {}, "since": NOW - 200} | running | fields
    return ServerView(model=name, state=state, **given)


def instance(state: ServerState) -> InstanceView:
    needs = {"host": 290_783_232}
    return InstanceView(id=3, state=state, host="local", pid=4711, needs_bytes=needs, since=NOW, why="asked to start")


def row(name: str, state: ServerState, slots: tuple[Slot, ...] = (), **fields: Any) -> Row:
    return Row(server(name, state, **fields), model(name), now=NOW, slots=slots, others_run=True)


SLOTS = slots_of(
    ModelSpeculation.model_validate(
        sums(13_347, 8_211, 7_702, rate=82.1, ratio=0.938, length=3.81)
        | {"model": "drafts", "spec_type": "draft-mtp"}
        | {
            "slots": [
                sums(12_345, 8_211, 7_702, rate=41.2, ratio=0.938, length=3.81) | {"slot": 0, "busy": True},
                sums(1_002, 0, 0, rate=40.9) | {"slot": 1, "busy": True},
                sums(0, 0, 0, rate=0.0) | {"slot": 2, "busy": False},
            ]
        }
    )
)
FAILURE = Failure(
    reason="out_of_memory", message=f"llama-server ended: {HOSTILE}", exit_code=1, log_tail=(HOSTILE, "error: no room")
)
ROWS = (
    row("drafts", ServerState.READY, SLOTS, spec_type="draft-mtp", running=2),
    row(
        "loads",
        ServerState.LOADING,
        waiting=2,
        waits_for="it is loading for 3 s",
        loading_seconds=3.0,
        expected_load_seconds=8.0,
        spec_type="draft-mtp",
    ),
    row("first", ServerState.WARMING, loading_seconds=3.0, hazards=(Hazard(id="x", message="it may fault on gfx906"),)),
    row("fails", ServerState.FAILED, failure=FAILURE, quarantine=Quarantine(until=NOW + 18, strikes=2)),
    row("down", ServerState.STOPPED),
    Row(server("absent", ServerState.STOPPED), model("absent", ("absent.gguf",)), now=NOW),
)
JOBS = (
    JobView(
        id="a1",
        kind="pull",
        subject="drafts",
        state=JobState.RUNNING,
        created=NOW - 9,
        progress=JobProgress(
            phase="fetching",
            file="drafts.gguf",
            done_bytes=41_943_040,
            total_bytes=98_314_240,
            rate_bytes_per_second=11_534_336.0,
            eta_seconds=4.9,
        ),
    ),
    JobView(
        id="a2",
        kind="pull",
        subject="fails",
        state=JobState.FAILED,
        created=NOW - 90,
        ended=NOW - 80,
        error=JobError(code="source_not_found", message=HOSTILE, hint="look at the repository's list of files"),
    ),
)
EVENTS = (
    Transition(
        number=2, at=NOW - 3, model="drafts", instance=1, host="local", state="ready", why="loaded and warmed up"
    ),
    Transition(number=1, at=NOW - 400, model="drafts", instance=1, host="local", state="loading", why=HOSTILE),
)
EVERYTHING = Overview(
    NOW,
    "Slipstream 0.0.0",
    "10 s",
    ROWS,
    (FileProblem(file=f"{HOSTILE}.yaml", message=HOSTILE, line=1),),
    JOBS,
    EVENTS,
    (f"CUDA is expected and not used: {HOSTILE}",),
)
