"""What clients hear of a server: how it is, and why it takes no request."""

import math
import time

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Quarantine, ServerState, ServerView
from orchestrator.servers.launch import Launch
from orchestrator.servers.server import Server
from orchestrator.servers.wanted import Want

# When a place may have become free: long enough that clients do not hammer, short against a load.
RETRY_SECONDS = 5
_UNPATCHED = "this llama-server is not patched: no counters per slot, no relaxed acceptance, no limits per request"


def view_of(server: Server, want: Want) -> ServerView:
    """A server as it is now."""
    first = server.first
    launch = first.goal.launch if first is not None and first.child is not None else None
    rest = server.rest_seconds
    loading = server.loading
    return ServerView(
        model=server.model,
        state=server.state,
        desired=want.desired,
        flags=want.flags,
        argv=launch.shown_argv if launch else (),
        spec_type=launch.spec_type if launch else "none",
        pid=first.child.pid if first and first.child else None,
        since=server.since,
        start_seconds=server.start_seconds,
        loading_seconds=None if loading is None else time.monotonic() - loading.since,
        expected_load_seconds=None if loading is None else loading.goal.load_seconds,
        restarts=max(0, server.starts - 1),
        warnings=_warnings(launch),
        failure=server.failure,
        running=server.running,
        waiting=len(server.waiting),
        waits_for=waits_for(server),
        hazards=launch.hazards if launch else tuple(h for goal in server.goals[:1] for h in goal.launch.hazards),
        quarantine=Quarantine(until=time.time() + rest, strikes=server.strikes) if rest else None,
        instances=tuple(i.view() for i in sorted(server.instances, key=lambda i: i is not first)),
    )


def waits_for(server: Server) -> str | None:
    """Why its requests wait; None when none does."""
    if not server.waiting:
        return None
    if server.waits_for is not None:
        return server.waits_for
    first = server.first
    if first is None:
        return "it is about to be started"
    if first.state in (ServerState.LOADING, ServerState.WARMING):
        return f"it is {first.state} for {time.monotonic() - first.since:.0f} s"
    if first.is_ready:
        return f"{server.running} requests run on it, as many as it may take"
    return f"its server is {first.state}"


def shutting_down() -> SlipstreamError:
    """Nothing starts any more."""
    message = "the orchestrator is shutting down"
    return SlipstreamError(Code.SHUTTING_DOWN, message, retry_after_seconds=RETRY_SECONDS)


def superseded(server: Server) -> SlipstreamError:
    """A command whose server a newer command is about."""
    return SlipstreamError(Code.CONFLICT, f"a newer request for {server.model!r} took the place of this one")


def queue_full(server: Server, bound: int) -> SlipstreamError:
    """Too many wait for it already. The advice: as long as the first of them has waited, a minute at most."""
    waited = time.monotonic() - server.waiting[0].since if server.waiting else 0.0
    return SlipstreamError(
        Code.QUEUE_FULL,
        f"{len(server.waiting)} requests wait for {server.model!r}, and {bound} may: {waits_for(server)}",
        retry_after_seconds=max(1, min(60, math.ceil(waited))),
    )


def wait_timeout(server: Server, seconds: float) -> SlipstreamError:
    """A request has waited long enough."""
    return SlipstreamError(
        Code.WAIT_TIMEOUT,
        f"{server.model!r} took no request within {seconds:g} s: {waits_for(server) or 'others went before'}",
        retry_after_seconds=RETRY_SECONDS,
    )


def no_room(server: Server, why: str) -> SlipstreamError:
    """It cannot be loaded as things are."""
    return SlipstreamError(
        Code.NO_ROOM, f"there is no room for {server.model!r}: {why}", retry_after_seconds=RETRY_SECONDS
    )


def not_running(server: Server) -> SlipstreamError:
    """It was stopped, or has failed."""
    if server.failure is None:
        return SlipstreamError(
            Code.SERVER_STOPPED, f"the server of {server.model!r} was stopped", retry_after_seconds=1
        )
    return SlipstreamError(
        Code.SERVER_START_FAILED,
        f"the server of {server.model!r} is not running: {server.failure.message}",
        retry_after_seconds=max(1, math.ceil(server.rest_seconds)),
        details={"reason": server.failure.reason},
    )


def quarantined(server: Server) -> SlipstreamError:
    """It has failed so often that it is not tried again for a while."""
    said = server.failure.message if server.failure else "it failed"
    return SlipstreamError(
        Code.QUARANTINED,
        f"the server of {server.model!r} has failed {server.strikes} times in a row and rests: {said}",
        hint=f"mend the cause, then POST /api/servers/{server.model}/clear or `slipstream clear {server.model}`",
        retry_after_seconds=max(1, math.ceil(server.rest_seconds)),
        details={"reason": server.failure.reason} if server.failure else None,
    )


def does_not_fit(model: str, needs: str) -> SlipstreamError:
    """It is larger than all that it may have."""
    return SlipstreamError(
        Code.DOES_NOT_FIT,
        f"{model!r} does not fit: {needs}",
        hint="a smaller ctx_size or quant, `place.memory` in the model file, or a larger SLIPSTREAM_MEMORY",
    )


def _warnings(launch: Launch | None) -> tuple[str, ...]:
    if launch is None:
        return ()
    return (*(() if launch.is_patched else (_UNPATCHED,)), *launch.warnings)
