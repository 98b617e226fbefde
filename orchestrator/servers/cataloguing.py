"""Edits of the catalogue over the API: model files written, changed and removed."""

import asyncio
from dataclasses import dataclass, field

from orchestrator.catalog import delete_model, write_model
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.inspect import inspect_file, inspect_headers
from orchestrator.schemas import AddRequest, AddView, Candidate, Inspection, ModelSpec, Role
from orchestrator.servers import adding
from orchestrator.servers.aside import Aside
from orchestrator.servers.confine import confined
from orchestrator.servers.manager import Manager
from orchestrator.store import Layout, list_repository, read_model, remote_headers, select


@dataclass(frozen=True)
class Cataloguing:
    """Changes of the folder of model files, one at a time."""

    manager: Manager
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _look_ups: Aside = field(default_factory=lambda: Aside(4))

    async def put(self, name: str, spec: ModelSpec) -> ModelSpec:
        """Write the model file of `spec`, which must have the name that the request names."""
        if spec.name != name:
            raise SlipstreamError(Code.INVALID_REQUEST, f"the body is of the model {spec.name!r}, the path of {name!r}")
        for source in spec.sources:
            confined(source, self.manager.files.layout)
        async with self._turn:
            await self.manager.refresh()
            await asyncio.to_thread(write_model, self.manager.catalog, spec)
            await self.manager.refresh()
        return self.manager.catalog.get(name)

    async def delete(self, name: str) -> None:
        """Remove a model file; SlipstreamError conflict while its server runs."""
        async with self._turn:
            await self.manager.refresh()
            spec = self.manager.catalog.get(name)
            if not self.manager.server(spec.name).is_down:
                raise SlipstreamError(
                    Code.CONFLICT,
                    f"the server of {spec.name!r} is running",
                    hint=f"stop it first: `slipstream stop {spec.name}`",
                )
            await asyncio.to_thread(delete_model, self.manager.catalog, spec.name)
            await self.manager.refresh()

    async def add(self, body: AddRequest, *, dry_run: bool) -> AddView:
        """Write a model file from what lies somewhere; nothing is guessed between two that fit.

        One that is there already with exactly this content is no conflict: a request may be sent again.
        """
        origin, layout = adding.parse_origin(body.origin), self.manager.files.layout
        if isinstance(origin, adding.HfOrigin):
            spec, notes = await self._look_ups.run(lambda: _from_hub(layout, origin, body))
        else:
            spec, notes = await self._look_ups.run(lambda: _from_ollama(origin, body))
        async with self._turn:
            await self.manager.refresh()
            catalog = self.manager.catalog
            if catalog.models.get(spec.name) == spec:
                return AddView(spec=spec, file=catalog.files[spec.name].name, notes=notes)
            if spec.name in catalog.names:
                raise SlipstreamError(
                    Code.CONFLICT,
                    f"there is a model {spec.name!r} already",
                    hint="give this one another name (--name), or change that one's file",
                )
            file = f"{spec.name}.yaml"
            if not dry_run:
                comment = "\n".join((f"Written by `slipstream add {body.origin}`.", *notes))
                file = (await asyncio.to_thread(write_model, catalog, spec, comment)).name
                await self.manager.refresh()
        return AddView(spec=spec, file=file, notes=notes)


def _from_hub(layout: Layout, origin: adding.HfOrigin, body: AddRequest) -> tuple[ModelSpec, tuple[str, ...]]:
    view = list_repository(origin.repository, origin.revision)
    target = select(view, origin.wanted)
    wanted = adding.choose_drafter(view, body.drafter)
    drafter = None if wanted is None else select(view, wanted, Role.DRAFTER)

    def looked_into(candidate: Candidate) -> tuple[Candidate, Inspection]:
        source = adding.hf_source(view, candidate)
        return candidate, inspect_headers(remote_headers(layout, source))

    return adding.spec_of_repository(
        view, looked_into(target), None if drafter is None else looked_into(drafter), body.name
    )


def _from_ollama(origin: adding.OllamaOrigin, body: AddRequest) -> tuple[ModelSpec, tuple[str, ...]]:
    model = read_model(origin.model)
    drafter = None if body.drafter == "none" else model.drafter
    return adding.spec_of_ollama(
        model,
        inspect_file(model.model),
        None if drafter is None else inspect_file(drafter),
        body.name,
    )
