"""Models and servers."""

from collections.abc import Generator

from orchestrator.client.connection import FOLLOW_TIMEOUT_SECONDS, WORK_TIMEOUT_SECONDS, Connection, segment, timeout
from orchestrator.schemas import FlagInfo, ModelList, ModelView, Plan, ServerList, ServerPut, ServerView, SwapRequest


class ServerCalls(Connection):
    """Calls of `/api/models`, `/api/servers`, `/api/swap`, `/api/flags` and the probes."""

    def check_ready(self) -> None:
        """Return when the orchestrator takes requests now; SlipstreamError otherwise."""
        self._request("GET", "/readyz")

    def models(self) -> ModelList:
        """The catalogue, and the model files that could not be loaded."""
        return self._get("/api/models", ModelList)

    def model(self, name: str) -> ModelView:
        """One model, by name or alias."""
        return self._get(f"/api/models/{segment(name)}", ModelView)

    def servers(self) -> ServerList:
        """Every server, one a model."""
        return self._get("/api/servers", ServerList)

    def server(self, model: str) -> ServerView:
        """One server, by the name or alias of its model."""
        return self._get(f"/api/servers/{segment(model)}", ServerView)

    def put_server(self, model: str, body: ServerPut, *, dry_run: bool = False) -> ServerView | Plan:
        """Set desired state and flags; answers when it is done. `dry_run` answers with a Plan and touches nothing."""
        return self._change("PUT", f"/api/servers/{segment(model)}", body, dry_run)

    def start(self, model: str) -> ServerView:
        """Start the server and keep it running; answers when it is ready, minutes later for a large model."""
        return self._command(model, "start")

    def stop(self, model: str) -> ServerView:
        """End the server; answers when its process is gone."""
        return self._command(model, "stop")

    def restart(self, model: str) -> ServerView:
        """End the server and start it again; answers when it is ready."""
        return self._command(model, "restart")

    def swap(self, body: SwapRequest, *, dry_run: bool = False) -> ServerView | Plan:
        """Stop servers and start another; if it fails, what ran before runs again and the error says so."""
        return self._change("POST", "/api/swap", body, dry_run)

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

    def _command(self, model: str, verb: str) -> ServerView:
        path = f"/api/servers/{segment(model)}/{verb}"
        return self._parse(self._request("POST", path, timeout=timeout(WORK_TIMEOUT_SECONDS)), ServerView)

    def _change(self, method: str, path: str, body: ServerPut | SwapRequest, dry_run: bool) -> ServerView | Plan:
        response = self._request(
            method,
            path,
            params={"dry_run": dry_run},
            json=body.model_dump(mode="json", exclude_none=True),
            timeout=timeout(WORK_TIMEOUT_SECONDS),
        )
        return self._parse(response, Plan) if dry_run else self._parse(response, ServerView)
