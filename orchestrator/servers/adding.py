"""From what a repository or an Ollama store holds to a model file: pure, nothing guessed between two."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Candidate, HfSource, Inspection, ModelSpec, RepositoryView, Role
from orchestrator.store import OllamaModel, settings_of

_HF = re.compile(r"hf:(?P<repository>[^:@/\s]+/[^:@/\s]+)(@(?P<revision>[^:\s]+))?(:(?P<wanted>\S+))?")
_OLLAMA = re.compile(r"ollama:(?P<model>\S+)")
# What most cards hold beside a model; the model file is the place to raise it.
_CTX_TOKENS = 8192
# The depth at which the heads of our seeds paid best.
_N_MAX = 2
_LONGEST_NAME = 63


@dataclass(frozen=True)
class HfOrigin:
    """`hf:owner/name[@revision][:quant or file]`."""

    repository: str
    revision: str | None
    wanted: str | None


@dataclass(frozen=True)
class OllamaOrigin:
    """`ollama:name[:tag]`."""

    model: str


def parse_origin(text: str) -> HfOrigin | OllamaOrigin:
    """Where a model is to be looked for; SlipstreamError invalid_request for any other text."""
    if (found := _HF.fullmatch(text)) and _names_a_file(**found.groupdict()):
        return HfOrigin(found["repository"], found["revision"], found["wanted"])
    if found := _OLLAMA.fullmatch(text):
        return OllamaOrigin(found["model"])
    raise SlipstreamError(
        Code.INVALID_REQUEST,
        f"{text[:200]!r} is neither hf:owner/name[@revision][:quant or file] nor ollama:name[:tag]",
    )


def _names_a_file(repository: str, revision: str | None, wanted: str | None) -> bool:
    """Whether the parts could stand in a model file: none of them leads out of the repository."""
    try:
        HfSource(hf=repository, file=wanted or "any", revision=revision)
    except ValidationError:
        return False
    return True


def choose_drafter(view: RepositoryView, wanted: str | None) -> str | None:
    """What to look for among the drafters of a repository: a quant or file, or None for no drafter at all.

    SlipstreamError source_ambiguous when there are several and none was named.
    """
    drafters = [c for c in view.candidates if c.role is Role.DRAFTER]
    if wanted == "none" or (wanted is None and not drafters):
        return None
    if wanted is None and len(drafters) > 1:
        raise SlipstreamError(
            Code.SOURCE_AMBIGUOUS,
            f"{view.repository} has {len(drafters)} drafters: {', '.join(c.file for c in drafters)}",
            hint="name one with `drafter` (--drafter), or say `none`",
            details={"candidates": [c.model_dump(mode="json") for c in drafters]},
        )
    return wanted or drafters[0].file


def spec_of_repository(
    view: RepositoryView,
    target: tuple[Candidate, Inspection],
    drafter: tuple[Candidate, Inspection] | None,
    name: str | None,
) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model file for a target and its drafter, pinned to the commit that was looked at, with notes."""
    candidate, inspection = target
    _require_model(candidate, inspection)
    notes = [f"{candidate.file}: {_size(candidate.size_bytes)}, {inspection.quant}, {inspection.kind}"]
    fields: dict[str, Any] = {
        "name": name or _name(view.repository),
        "source": hf_source(view, candidate),
    }
    if drafter is not None:
        notes.append(f"{drafter[0].file}: {_size(drafter[0].size_bytes)}, the drafter")
        fields["drafter"] = hf_source(view, drafter[0])
    fields |= _serving(inspection, drafter[1] if drafter else None, notes)
    if any(c.role is Role.MMPROJ for c in view.candidates):
        notes.append("the repository has an mmproj file, which model files do not name yet: text only")
    return _spec(fields), tuple(notes)


def hf_source(view: RepositoryView, candidate: Candidate) -> HfSource:
    """A file of a repository at the commit that was looked at."""
    with _fit_for_a_model_file(candidate.file):
        return HfSource(hf=view.repository, file=candidate.file, revision=view.commit)


def spec_of_ollama(
    model: OllamaModel, target: Inspection, drafter: Inspection | None, name: str | None
) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model file for a model of an Ollama store, whose files are used in place."""
    settings = settings_of(model.parameters, has_drafter=drafter is not None)
    notes = [*model.notes, *settings.notes]
    fields: dict[str, Any] = {
        "name": name or _name(model.name.replace(":", "-")),
        "source": {"ollama": model.name},
    }
    if drafter is not None:
        fields["drafter"] = {"ollama": model.name, "layer": "drafter"}
    fields |= _serving(target, drafter, notes)
    fields["speculation"] |= settings.speculation
    fields["server"] |= settings.server
    fields["defaults"] = settings.defaults
    return _spec(fields), tuple(notes)


def spec_type_of(drafter: Inspection) -> str:
    """The --spec-type that a drafter's file is made for; llama-server infers only some of them by itself."""
    if drafter.architecture in ("eagle3", "dflash"):
        return f"draft-{drafter.architecture}"
    is_mtp = drafter.head is not None or drafter.architecture.endswith("-assistant")
    return "draft-mtp" if is_mtp else "draft-simple"


def _spec(fields: dict[str, Any]) -> ModelSpec:
    with _fit_for_a_model_file(fields["name"]):
        return ModelSpec.model_validate(fields)


@contextmanager
def _fit_for_a_model_file(what: str) -> Iterator[None]:
    """Names and parameters come from elsewhere, and may be none that a model file can hold."""
    try:
        yield
    except ValidationError as e:
        found = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in e.errors())
        raise SlipstreamError(Code.SOURCE_UNSUPPORTED, f"no model file can be written for {what!r}: {found}") from e


def _serving(target: Inspection, drafter: Inspection | None, notes: list[str]) -> dict[str, Any]:
    ctx_tokens = min(_CTX_TOKENS, target.context_length or _CTX_TOKENS)
    speculation: dict[str, Any] = {"type": "none"}
    if drafter is not None:
        speculation = {"type": spec_type_of(drafter), "n_max": _N_MAX}
    elif target.head is not None and target.drafts_with_mtp and not target.head.missing:
        speculation = {"type": "draft-mtp", "n_max": _N_MAX}
        notes.append("the file holds an MTP head of its own")
    else:
        notes.append("no drafter and no MTP head that drafts: speculation is off")
    notes.append(f"ctx_size is {ctx_tokens} of the {target.context_length or 'unknown'} tokens it was trained for")
    return {"speculation": speculation, "server": {"ctx_size": ctx_tokens}}


def _require_model(candidate: Candidate, inspection: Inspection) -> None:
    if inspection.role != "model":
        raise SlipstreamError(
            Code.SOURCE_AMBIGUOUS,
            f"{candidate.file} is no model but a file of the kind {inspection.role!r}",
            hint="name a model's file; a head is grafted with `graft:` in the model file of its base",
        )
    if errors := [p.message for p in inspection.problems if p.severity == "error"]:
        raise SlipstreamError(Code.PREFLIGHT_FAILED, f"{candidate.file} cannot be served: {'; '.join(errors)}")


def _name(text: str) -> str:
    """A model's name, told from a repository's or an Ollama model's."""
    last = re.sub(r"-gguf$", "", text.rpartition("/")[2], flags=re.IGNORECASE).lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("._-")[:_LONGEST_NAME] or "model"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"
