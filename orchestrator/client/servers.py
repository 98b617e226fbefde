"""Models and servers."""

from collections.abc import Generator

from pydantic import ValidationError

from orchestrator.client.connection import FOLLOW_TIMEOUT_SECONDS, WORK_TIMEOUT_SECONDS, Connection, segment, timeout
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import (
    AuditList,
    BenchPut,
    BenchView,
    FlagInfo,
    ModelList,
    ModelView,
    Plan,
    ServerList,
    ServerPut,
    ServerView,
    SlotList,
    SpeculationList,
    SwapRequest,
    Transition,
)


class ServerCalls(Connection):
    """Calls of `/api/models`, `/api/servers`, `/api/swap`, `/api/speculation`, `/api/events`, `/api/audit`,
    `/api/flags` and the probes.

    `drain_seconds` is the time that running answers get to end; None leaves it to the orchestrator.
    """

    def check_ready(self) -> None:
        """Return when the orchestrator takes requests now; SlipstreamError otherwise."""
        self._request("GET", "/readyz")

    def models(self) -> ModelList:
        """The catalogue, and the model files that could not be loaded."""
        return self._get("/api/models", ModelList)

    def model(self, name: str) -> ModelView:
        """One model, by name or alias."""
        return self._get(f"/api/models/{segment(name)}", ModelView)

    def bench(self, model: str) -> BenchView:
        """The measurement of drafting that is kept for a model, and whether it still holds."""
        return self._get(f"/api/models/{segment(model)}/bench", BenchView)

    def put_bench(self, model: str, body: BenchPut) -> BenchView:
        """Keep a measurement of the model's server, which has to run as it was measured."""
        path, json = f"/api/models/{segment(model)}/bench", body.model_dump(mode="json")
        return self._parse(self._request("PUT", path, json=json), BenchView)

    def forget_bench(self, model: str) -> None:
        """Keep no measurement for a model any more."""
        self._request("DELETE", f"/api/models/{segment(model)}/bench")

    def servers(self) -> ServerList:
        """Every server, one a model."""
        return self._get("/api/servers", ServerList)

    def server(self, model: str) -> ServerView:
        """One server, by the name or alias of its model."""
        return self._get(f"/api/servers/{segment(model)}", ServerView)

    def slots(self, model: str) -> SlotList:
        """The slots of a running server, without anything that a client has sent."""
        return self._get(f"/api/servers/{segment(model)}/slots", SlotList)

    def speculation(self) -> SpeculationList:
        """How speculation fares per model and slot; fit to be asked every second."""
        return self._get("/api/speculation", SpeculationList)

    def put_server(
        self, model: str, body: ServerPut, *, dry_run: bool = False, drain_seconds: float | None = None
    ) -> ServerView | Plan:
        """Set desired state and flags; answers when it is done. `dry_run` answers with a Plan and touches nothing."""
        return self._change("PUT", f"/api/servers/{segment(model)}", body, dry_run, drain_seconds)

    def start(self, model: str) -> ServerView:
        """Start the server and keep it running; answers when it is ready, minutes later for a large model."""
        return self._command(model, "start")

    def stop(self, model: str, *, drain_seconds: float | None = None) -> ServerView:
        """End the server; answers when its process is gone."""
        return self._command(model, "stop", drain_seconds)

    def restart(self, model: str, *, drain_seconds: float | None = None) -> ServerView:
        """End the server and start it again; answers when it is ready."""
        return self._command(model, "restart", drain_seconds)

    def clear(self, model: str) -> ServerView:
        """Lift a quarantine: the server is tried again at once when it is needed."""
        return self._command(model, "clear")

    def swap(
        self, body: SwapRequest, *, dry_run: bool = False, drain_seconds: float | None = None
    ) -> ServerView | Plan:
        """Stop servers and start another; if it fails, what ran before runs again and the error says so."""
        return self._change("POST", "/api/swap", body, dry_run, drain_seconds)

    def flags(self) -> list[FlagInfo]:
        """Every flag of the llama-server binary."""
        return self._get("/api/flags", list[FlagInfo])

    def metrics(self) -> str:
        """The page for Prometheus, in its text format."""
        return self._request("GET", "/metrics").text

    def logs(self, model: str, *, tail: int = 100, follow: bool = True) -> Generator[str, None, None]:
        """Log lines of a server: the last `tail`, then new ones as they come. Close the generator to end it."""
        path, params = f"/api/servers/{segment(model)}/logs", {"tail": tail, "follow": follow}
        for event in self._events("GET", path, timeout(FOLLOW_TIMEOUT_SECONDS), params=params):
            if event.event == "line":
                yield event.data

    def events(self, *, after: int = 0, follow: bool = True) -> Generator[Transition, None, None]:
        """Transitions of servers whose numbers are greater than `after`, of the last 1000; then those that come.

        Ends when the orchestrator shuts down. Close the generator to end it before.
        """
        params = {"after": after, "follow": follow}
        for event in self._events("GET", "/api/events", timeout(FOLLOW_TIMEOUT_SECONDS), params=params):
            if event.event == "transition":
                yield _transition(event.data)

    def audit(self, *, limit: int = 100, before: int | None = None) -> AuditList:
        """The newest entries of the audit log, of those whose numbers are less than `before`."""
        params = {"limit": limit} | ({} if before is None else {"before": before})
        return self._parse(self._request("GET", "/api/audit", params=params), AuditList)

    def _command(self, model: str, verb: str, drain_seconds: float | None = None) -> ServerView:
        path, wait = f"/api/servers/{segment(model)}/{verb}", timeout(WORK_TIMEOUT_SECONDS)
        return self._parse(self._request("POST", path, params=_drain(drain_seconds), timeout=wait), ServerView)

    def _change(
        self, method: str, path: str, body: ServerPut | SwapRequest, dry_run: bool, drain_seconds: float | None
    ) -> ServerView | Plan:
        response = self._request(
            method,
            path,
            params={"dry_run": dry_run} | _drain(drain_seconds),
            json=body.model_dump(mode="json", exclude_none=True),
            timeout=timeout(WORK_TIMEOUT_SECONDS),
        )
        return self._parse(response, Plan) if dry_run else self._parse(response, ServerView)


def _drain(seconds: float | None) -> dict[str, float]:
    return {} if seconds is None else {"drain_seconds": seconds}


def _transition(data: str) -> Transition:
    try:
        return Transition.model_validate_json(data)
    except ValidationError as e:
        raise SlipstreamError(
            Code.UPSTREAM_FAILED, "an event `transition` has another shape than this version knows"
        ) from e
