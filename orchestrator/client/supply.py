"""Model files, the store, grafts and GGUF headers."""

from typing import Any, TypeVar

from pydantic import BaseModel

from orchestrator.client.connection import WORK_TIMEOUT_SECONDS, Connection, segment, timeout
from orchestrator.schemas import (
    AddRequest,
    AddView,
    GcView,
    GraftPlan,
    GraftRequest,
    Inspection,
    InspectRequest,
    JobView,
    ModelSpec,
    ModelView,
    OllamaView,
    StoreView,
    VerifyRequest,
)

# A hub is asked meanwhile, and headers of remote files are read.
_LOOK_UP_TIMEOUT_SECONDS = 300.0
T = TypeVar("T")


class SupplyCalls(Connection):
    """Calls that write model files, bring and remove what they need, and look into files."""

    def add(self, body: AddRequest, *, dry_run: bool = False) -> AddView:
        """Write a model file from what a repository or an Ollama store holds; `dry_run` only answers with it."""
        return self._send("POST", "/api/models", body, AddView, dry_run=dry_run)

    def put_model(self, spec: ModelSpec) -> ModelView:
        """Write a model file, or change the one there is."""
        return self._send("PUT", f"/api/models/{segment(spec.name)}", spec, ModelView)

    def delete_model(self, name: str) -> None:
        """Remove a model file whose server is not running."""
        self._request("DELETE", f"/api/models/{segment(name)}")

    def pull(self, name: str, *, update: bool = False, idempotency_key: str | None = None) -> JobView:
        """Begin to bring every file of a model; a live pull of the same files is joined. Follow it by `job_events`."""
        path = f"/api/models/{segment(name)}/pull"
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        return self._parse(self._request("POST", path, params={"update": update}, headers=headers), JobView)

    def graft(self, body: GraftRequest) -> JobView:
        """Begin to bring base and donor and graft."""
        return self._send("POST", "/api/grafts", body, JobView)

    def plan_graft(self, body: GraftRequest) -> GraftPlan:
        """What a graft would add and change."""
        return self._send("POST", "/api/grafts/plan", body, GraftPlan)

    def inspect(self, body: InspectRequest) -> Inspection:
        """What the header of a file says, here or elsewhere."""
        return self._send("POST", "/api/gguf/inspect", body, Inspection)

    def store(self) -> StoreView:
        """What the store holds, and who needs it."""
        return self._get("/api/store", StoreView)

    def ollama(self) -> OllamaView:
        """What Ollama has on the orchestrator's machine."""
        return self._get("/api/ollama", OllamaView)

    def verify(self, body: VerifyRequest) -> JobView:
        """Begin to compare files with their digests again; the result of the job is a VerifyView."""
        return self._send("POST", "/api/store/verify", body, JobView)

    def collect(self, *, dry_run: bool = False) -> GcView:
        """Remove what nobody refers to; `dry_run` only says what that is."""
        wait = timeout(WORK_TIMEOUT_SECONDS)
        response = self._request("POST", "/api/store/gc", params={"dry_run": dry_run}, timeout=wait)
        return self._parse(response, GcView)

    def _send(self, method: str, path: str, body: BaseModel, shape: type[T], **params: Any) -> T:
        json = body.model_dump(mode="json", exclude_none=True)
        wait = timeout(_LOOK_UP_TIMEOUT_SECONDS)
        return self._parse(self._request(method, path, json=json, params=params, timeout=wait), shape)
