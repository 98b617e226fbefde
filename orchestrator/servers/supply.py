"""Supply of model files: what is brought, made, inspected, verified and removed, and who asks for it."""

import asyncio
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.catalog import Catalog
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.graft import plan_graft
from orchestrator.gguf.inspect import inspect_file, inspect_headers
from orchestrator.jobs import Jobs
from orchestrator.schemas import (
    GcView,
    GraftPlan,
    GraftRequest,
    Inspection,
    InspectRequest,
    JobView,
    ModelSpec,
    OllamaRunner,
    OllamaView,
    Source,
    StoreView,
    VerifyRequest,
)
from orchestrator.servers.aside import Aside
from orchestrator.servers.confine import confined
from orchestrator.servers.manager import Manager
from orchestrator.store import Reference, collect, inventory, list_models, remote_headers, runner_version

_WRITERS = frozenset({"pull", "graft"})
_STATE_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Supply:
    """Commands over the store. Long work becomes a job; everything that looks at the disk runs in a thread."""

    manager: Manager
    jobs: Jobs
    _look_ups: Aside = field(default_factory=lambda: Aside(4))
    _disk: Aside = field(default_factory=lambda: Aside(2))

    async def pull(self, name: str, *, update: bool, idempotency_key: str | None) -> JobView:
        """Bring every file of a model; a live pull of the same files is joined."""
        await self.manager.refresh()
        spec = self.manager.catalog.get(name)
        request = self._request(spec) | {"update": update}
        return await self.jobs.submit("pull", spec.name, request, key=_key(request), idempotency_key=idempotency_key)

    async def graft(self, body: GraftRequest, *, idempotency_key: str | None) -> JobView:
        """Bring base and donor and make the graft of them, which stays in the store until it is collected."""
        request = self._request(ModelSpec(name="graft", source=self._confined(body.base))) | {
            "donor": self._confined(body.donor).model_dump(mode="json"),
            "speculation": {"type": "draft-mtp"},
        }
        subject = f"{_told(body.donor)} onto {_told(body.base)}"
        return await self.jobs.submit("graft", subject, request, key=_key(request), idempotency_key=idempotency_key)

    async def plan_graft(self, body: GraftRequest) -> GraftPlan:
        """Every tensor and key that a graft would change; base and donor have to be here."""
        return await self._disk.run(lambda: plan_graft(self._present(body.base), self._present(body.donor)))

    async def verify(self, body: VerifyRequest, *, idempotency_key: str | None) -> JobView:
        """Compare files with their digests again, those of some models or all of the store."""
        await self.manager.refresh()
        specs = None if body.models is None else [self.manager.catalog.get(name) for name in body.models]
        files = self.manager.files
        request: dict[str, Any] = {"models_dir": str(files.models_dir), "cache": str(files.cache)}
        if specs is not None:
            request |= await asyncio.to_thread(
                lambda: {
                    "paths": [str(path) for spec in specs for path in files.references(spec)],
                    "unplaced": [name for spec in specs for name in files.unplaced(spec)],
                }
            )
        subject = "the store" if specs is None else ", ".join(s.name for s in specs)
        return await self.jobs.submit("verify", subject, request, key=_key(request), idempotency_key=idempotency_key)

    async def inspect(self, body: InspectRequest) -> Inspection:
        """What a file's header says; one that is not here is read where it is, and not kept."""
        self._confined(body.source)

        def work() -> Inspection:
            layout = self.manager.files.layout
            place, missing = layout.look(body.source)
            if place is not None and place.path.name not in missing:
                return inspect_file(place.path, body.ctx_tokens)
            return inspect_headers(remote_headers(layout, body.source), (), body.ctx_tokens)

        return await self._look_ups.run(work)

    async def ollama(self) -> OllamaView:
        """The models of Ollama's store, and which llama.cpp its runner reports."""

        def work() -> OllamaView:
            runner = runner_version()
            told = None if runner is None else OllamaRunner(**asdict(runner))
            return OllamaView(models=list_models(), runner=told)

        return await self._disk.run(work)

    async def inventory(self) -> StoreView:
        """What the store holds, and who needs it."""
        await self.manager.refresh()
        catalog, running = self.manager.catalog, self._running()
        return await self._disk.run(lambda: inventory(self.manager.files.layout, self._references(catalog, running)))

    async def collect(self, *, dry_run: bool) -> GcView:
        """Remove what nobody refers to. SlipstreamError conflict while that cannot be told for sure."""
        loop = asyncio.get_running_loop()

        def current() -> list[Reference]:
            # State belongs to the event loop, so it is read there; for each removal anew, so that what has begun
            # meanwhile counts.
            needed = asyncio.run_coroutine_threadsafe(self._needed(dry_run=dry_run), loop)
            return self._references(*needed.result(_STATE_TIMEOUT_SECONDS))

        return await self._disk.run(lambda: collect(self.manager.files.layout, current, dry_run=dry_run))

    async def _needed(self, *, dry_run: bool) -> tuple[Catalog, list[Reference]]:
        """The catalogue and the files of servers, when they are all that is needed; else SlipstreamError conflict."""
        await self.manager.refresh()
        if problems := self.manager.catalog.problems:
            raise SlipstreamError(
                Code.CONFLICT,
                f"the model file {problems[0].file} cannot be read ({problems[0].message}): what it needs is unknown",
                hint="mend it or move it away, then collect again",
            )
        live = [job for job in self.jobs.list().jobs if job.kind in _WRITERS and not job.state.is_final]
        if live and not dry_run:
            raise SlipstreamError(
                Code.CONFLICT,
                f"the job {live[0].id} ({live[0].kind} {live[0].subject}) is bringing files",
                hint="wait for it or cancel it, then collect again",
            )
        return self.manager.catalog, self._running()

    def _running(self) -> list[Reference]:
        """Files of servers: they may be other ones than its model file names by now."""
        return [
            Reference(path, f"server {model}")
            for model, launch in self.manager.launches()
            for path in (launch.target, launch.drafter)
            if path is not None
        ]

    def _references(self, catalog: Catalog, running: list[Reference]) -> list[Reference]:
        files, specs = self.manager.files, catalog.models.values()
        return [Reference(path, f"model {spec.name}") for spec in specs for path in files.references(spec)] + running

    def _request(self, spec: ModelSpec) -> dict[str, Any]:
        files = self.manager.files
        request: dict[str, Any] = {"models_dir": str(files.models_dir), "cache": str(files.cache)}
        request["is_pinned"] = files.is_pinned
        request |= spec.model_dump(mode="json", include={"source", "drafter", "speculation"}, exclude_none=True)
        if spec.graft is not None:
            request["donor"] = spec.graft.donor.model_dump(mode="json")
        return request

    def _present(self, source: Source) -> Path:
        self._confined(source)
        layout = self.manager.files.layout
        place = layout.place(source)
        if place is None or place.missing:
            raise SlipstreamError(
                Code.MODEL_INCOMPLETE,
                f"{', '.join(layout.missing(source))} is not on disk, and a plan reads both headers here",
                hint="POST /api/grafts brings both and grafts",
            )
        return place.path

    def _confined(self, source: Source) -> Source:
        return confined(source, self.manager.files.layout)


def _key(request: dict[str, Any]) -> str:
    """Two requests with the same key are the same work."""
    return str(sorted(request.items()))


def _told(source: Source) -> str:
    """A source in few words, without folders and addresses."""
    for name in ("file", "ollama"):
        if value := getattr(source, name, None):
            return str(value).rpartition("/")[2]
    return str(getattr(source, "path", None) or getattr(source, "url", "")).partition("?")[0].rpartition("/")[2]
