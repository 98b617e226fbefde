"""Measurements of what drafting brings, kept by model beside what was measured, so that a change makes them stale."""

import hashlib
import time
from collections.abc import Iterator

from orchestrator.db import BenchRecord, Database
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import BenchFigures, BenchPut, BenchResult, BenchView, ModelSpec
from orchestrator.servers.manager import Manager
from orchestrator.servers.wanted import Want, Wanted
from orchestrator.telemetry.bench import BenchSample

# What of a model file decides how a server runs (launch.py); the rest may change and nothing is stale.
_DECIDES = {"source", "drafter", "graft", "speculation", "server", "place", "slots"}


class Benches:
    """One measurement a model. What `keep` has returned for survives a kill at any instant."""

    def __init__(self, database: Database, manager: Manager, wanted: Wanted) -> None:
        self._database = database
        self._manager = manager
        self._wanted = wanted
        self._kept = {record.model: (record, BenchFigures.of(record.rounds)) for record in database.benches()}

    async def view(self, name: str) -> BenchView:
        """What is kept for a model or alias."""
        await self._manager.refresh()
        return self._view(self._manager.catalog.get(name))

    async def keep(self, name: str, body: BenchPut) -> BenchView:
        """Keep a measurement of the server that runs now; SlipstreamError when it was another one."""
        await self._manager.refresh()
        spec = self._manager.catalog.get(name)
        launch = self._manager.server(spec.name).launch
        if launch is None:
            raise SlipstreamError(
                Code.SERVER_STOPPED,
                f"the server of {spec.name!r} does not run, so nobody can tell whether this was measured of it",
                hint="measure again, and send the result while it runs",
            )
        if launch.key != body.launch:
            raise SlipstreamError(
                Code.CONFLICT,
                f"the server of {spec.name!r} runs as {launch.key} now, and {body.launch} was measured",
                hint="its flags, files or place have changed meanwhile: measure again",
            )
        if launch.spec_type == "none":
            raise SlipstreamError(
                Code.CONFLICT, f"the server of {spec.name!r} makes no drafts: its speculation.type is none"
            )
        settings = _settings(launch.spec, self._wanted[spec.name])
        record = BenchRecord(spec.name, time.time(), launch.key, settings, launch.spec_type, body.rounds)
        await self._database.set_bench(record)
        self._kept[spec.name] = (record, BenchFigures.of(record.rounds))
        return self._view(spec)

    async def forget(self, name: str) -> None:
        """Keep nothing for a model any more."""
        await self._manager.refresh()
        model = self._manager.catalog.get(name).name
        await self._database.forget_bench(model)
        self._kept.pop(model, None)

    def samples(self) -> Iterator[BenchSample]:
        """Of every measurement that is not stale, from memory."""
        for model, (record, figures) in sorted(self._kept.items()):
            spec = self._manager.catalog.models.get(model)
            if spec is not None and not self._is_stale(spec, record):
                yield BenchSample(model, record.spec_type, record.at, figures.speedup_ratio, figures.break_even_tokens)

    def _view(self, spec: ModelSpec) -> BenchView:
        launch = self._manager.server(spec.name).launch
        result = None
        if spec.name in self._kept:
            record, figures = self._kept[spec.name]
            result = BenchResult(
                **figures.model_dump(),
                at=record.at,
                launch=record.launch,
                spec_type=record.spec_type,
                is_stale=self._is_stale(spec, record),
            )
        return BenchView(model=spec.name, launch=launch.key if launch else None, result=result)

    def _is_stale(self, spec: ModelSpec, record: BenchRecord) -> bool:
        launch = self._manager.server(spec.name).launch
        if launch is not None:
            return launch.key != record.launch
        # How one that is down will run is planned from files and devices at its start: too much for a scrape.
        return _settings(spec, self._wanted[spec.name]) != record.settings


def _settings(spec: ModelSpec, want: Want) -> str:
    """A name for the settings that a start would use."""
    said = spec.model_dump_json(include=_DECIDES) + repr(sorted(want.flags.items()))
    return hashlib.sha256(said.encode()).hexdigest()[:16]
