"""The files of a model: where they are, what is missing, whether they fit."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.contents import contents_of_file
from orchestrator.gguf.preflight import preflight, unfit
from orchestrator.schemas import ModelSpec, Problem
from orchestrator.store import GraftPlace, Layout, Place, graft_place, grafts_onto

_NOT_GRAFTED = "the graft of {} and {}"
# Preflights kept by files and their times of change: a request that starts a server need not read headers again.
_KEPT_PREFLIGHTS = 256


@dataclass(frozen=True)
class Resolved:
    """A model whose files are there and fit. `stamps` tell its files, the target's first, from later ones."""

    spec: ModelSpec
    target: Path
    drafter: Path | None = None
    warnings: tuple[str, ...] = ()
    stamps: "tuple[Stamp, ...]" = ()
    architecture: str = ""


@dataclass(frozen=True)
class ModelFiles:
    """Answers for one folder of model files and one cache. Looks at the disk: not for the event loop."""

    models_dir: Path
    cache: Path
    is_pinned: bool = True
    """Whether the llama-server that will run is of the pinned build, of which preflight knows what it can load."""

    @cached_property
    def layout(self) -> Layout:
        """Where sources lie."""
        return Layout(self.models_dir, self.cache)

    def missing(self, spec: ModelSpec) -> tuple[str, ...]:
        """Names, without folders, of what a model needs and does not find."""
        return self._find(spec)[1]

    def resolve(self, spec: ModelSpec) -> Resolved:
        """The files a server is started with; none of them is opened for more than its header.

        SlipstreamError model_incomplete names what is missing, preflight_failed what would make llama-server abort or
        not draft.
        """
        places, missing = self._find(spec)
        if missing:
            raise _incomplete(spec, missing)
        try:
            stamps = tuple(map(_stamped, places))
        except FileNotFoundError as e:
            raise _incomplete(spec, (Path(e.filename).name,)) from e
        speculation = spec.speculation
        try:
            warnings, architecture = _preflight(
                stamps, tuple(speculation.type.split(",")), speculation.n_max, self.is_pinned
            )
        except _Unfit as e:
            raise unfit(e.problems, f"{spec.name!r} cannot be served: ") from None
        drafter = places[1].path if len(places) > 1 else None
        return Resolved(spec, places[0].path, drafter, warnings, stamps, architecture)

    def unplaced(self, spec: ModelSpec) -> tuple[str, ...]:
        """Names of what has no place yet: a branch that was never looked up, an Ollama model that is not there."""
        found = [self.layout.look(source) for source in spec.sources]
        return tuple(name for place, missing in found if place is None for name in missing)

    def references(self, spec: ModelSpec) -> Iterator[Path]:
        """Every file a model refers to, there or not; what it is grafted from counts too."""
        found = [self.layout.look(source) for source in spec.sources]
        for place, _ in found:
            if place is not None:
                yield from place.files
        if spec.graft is None:
            return
        (base, base_missing), (donor, donor_missing) = found
        graft = None
        if base is not None and donor is not None and not (base_missing or donor_missing):
            graft = self._graft(base, donor)
        if graft is not None:
            yield graft.path
        else:
            # Without its parts nobody can tell which one is meant.
            yield from grafts_onto(self.layout, base.path.name if base else base_missing[0])

    def _find(self, spec: ModelSpec) -> tuple[list[Place], tuple[str, ...]]:
        """What llama-server loads, the target first, and the names of what is missing: then the places are not all."""
        found = [self.layout.look(source) for source in spec.sources]
        places = [place for place, _ in found if place is not None]
        missing = tuple(name for _, names in found for name in names)
        if missing or spec.graft is None:
            return places, missing
        base, donor = places
        if (graft := self._graft(base, donor)) is not None and graft.is_present:
            return [Place(graft.path, (graft.path,))], ()
        return [], (_NOT_GRAFTED.format(base.path.name, donor.path.name),)

    def _graft(self, base: Place, donor: Place) -> GraftPlace | None:
        """Where the graft of two sources lies; None when one has gone since it was seen."""
        with suppress(OSError):
            return graft_place(self.layout, base, donor)
        return None


def _incomplete(spec: ModelSpec, missing: tuple[str, ...]) -> SlipstreamError:
    return SlipstreamError(
        Code.MODEL_INCOMPLETE,
        f"{spec.name!r} is not complete on disk; missing: {', '.join(missing)}",
        hint=f"bring it with `slipstream pull {spec.name}` or POST /api/models/{spec.name}/pull",
        details={"missing": list(missing)},
    )


class _Unfit(Exception):
    """Raised, not returned, so that it is not kept: what could not be read may be readable the next time."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


Stamp = tuple[Path, tuple[tuple[int, int, int], ...]]


def _stamped(place: Place) -> Stamp:
    """A path, and what changes when a file of it is written, replaced, or given to others."""
    facts = [file.stat() for file in place.files]
    return place.path, tuple((f.st_ino, f.st_size, f.st_ctime_ns) for f in facts)


@lru_cache(maxsize=_KEPT_PREFLIGHTS)
def _preflight(
    stamps: tuple[Stamp, ...], types: tuple[str, ...], n_max: int | None, is_pinned: bool
) -> tuple[tuple[str, ...], str]:
    """Warnings about a target and perhaps a drafter, and the target's architecture."""
    target, drafter = stamps[0][0], stamps[1][0] if len(stamps) > 1 else None
    problems = preflight(target, drafter, types, n_max, is_pinned=is_pinned)
    if errors := [p for p in problems if p.severity == "error"]:
        raise _Unfit(errors)
    return tuple(p.message for p in problems), contents_of_file(target).header.architecture
