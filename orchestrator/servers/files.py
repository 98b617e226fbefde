"""The files of a model: where they are, what is missing, how to bring it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec, Source
from orchestrator.store import ProgressSink, bring, is_present, locate

Fetch = Callable[[ProgressSink], Awaitable[None]]


@dataclass(frozen=True)
class ModelFiles:
    """Answers for one folder of model files and one cache."""

    models_dir: Path
    cache: Path

    def target(self, spec: ModelSpec) -> Path:
        """Where the target's file lies; SlipstreamError when this version cannot make it."""
        if spec.graft is not None:
            raise SlipstreamError(
                Code.SOURCE_UNSUPPORTED,
                f"{spec.name!r} needs a graft, which this version does not make",
                hint="name a file that already holds the head with `source: {path: ...}`",
            )
        return locate(spec.source, self.models_dir, self.cache)

    def drafter(self, spec: ModelSpec) -> Path | None:
        """Where the drafter's file lies, if the model has one."""
        return locate(spec.drafter, self.models_dir, self.cache) if spec.drafter else None

    def missing(self, spec: ModelSpec) -> list[tuple[Source, Path]]:
        """Sources whose file is not on disk, and where it would lie."""
        sources = [spec.source] if spec.drafter is None else [spec.source, spec.drafter]
        places = [(source, locate(source, self.models_dir, self.cache)) for source in sources]
        return [(source, path) for source, path in places if not is_present(path)]

    def fetch(self, spec: ModelSpec) -> Fetch | None:
        """What brings the missing files; None when nothing is missing."""
        missing = self.missing(spec)
        if not missing:
            return None

        async def fetch(progress: ProgressSink) -> None:
            for source, path in missing:
                if not await asyncio.to_thread(is_present, path):
                    await bring(source, path, progress)

        return fetch
