"""What clients hear of a server: how it is, and why it takes no request."""

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ServerView
from orchestrator.servers.launch import Launch
from orchestrator.servers.server import REST_SECONDS, Server
from orchestrator.servers.wanted import Want

RETRY_SECONDS = int(REST_SECONDS)
_UNPATCHED = "this llama-server is not patched: no counters per slot, no relaxed acceptance, no limits per request"


def view_of(server: Server, want: Want, *, is_patched: bool) -> ServerView:
    """A server as it is now. `is_patched` says which llama-server runs."""
    running = server.launch if server.child else None
    return ServerView(
        model=server.model,
        state=server.state,
        desired=want.desired,
        flags=want.flags,
        argv=running.shown_argv if running else (),
        spec_type=running.spec_type if running else "none",
        pid=server.child.pid if server.child else None,
        since=server.since,
        start_seconds=server.start_seconds,
        restarts=max(0, server.starts - 1),
        warnings=_warnings(running, is_patched),
        failure=server.failure,
    )


def shutting_down() -> SlipstreamError:
    """Nothing starts any more."""
    message = "the orchestrator is shutting down"
    return SlipstreamError(Code.SHUTTING_DOWN, message, retry_after_seconds=RETRY_SECONDS)


def not_running(server: Server) -> SlipstreamError:
    """It was stopped, or rests after a failure."""
    if server.failure is None:
        return SlipstreamError(
            Code.SERVER_STOPPED, f"the server of {server.model!r} was stopped", retry_after_seconds=1
        )
    return SlipstreamError(
        Code.SERVER_START_FAILED,
        f"the server of {server.model!r} is not running: {server.failure.message}",
        retry_after_seconds=RETRY_SECONDS,
    )


def _warnings(running: Launch | None, is_patched: bool) -> tuple[str, ...]:
    if running is None:
        return ()
    return (*(() if is_patched else (_UNPATCHED,)), *running.warnings)
