"""Paths that come over the API stay inside the folders of Slipstream."""

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import PathSource, Source
from orchestrator.store import Layout


def confined(source: Source, layout: Layout) -> Source:
    """A source that came over the API: a path must lie in the folder of model files or in the cache.

    Model files that an operator writes on disk may name any path. Symlinks count by where they are, not by where they
    lead: who can make one there can read its target too.
    """
    if isinstance(source, PathSource):
        path = layout.own_file(source.path)
        folders = [folder for folder in (layout.models_dir, layout.cache) if path.is_relative_to(folder)]
        if not any(".." not in path.relative_to(folder).parts for folder in folders):
            raise SlipstreamError(
                Code.FORBIDDEN,
                f"the path {source.path[:200]!r} leads outside the folders of Slipstream",
                hint="put the file below the folder of model files, or write the model file on disk yourself",
            )
    return source
