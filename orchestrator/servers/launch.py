"""From a model file to the arguments of a llama-server: pure, checked before anything is touched."""

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagValue, ModelSpec, Speculation
from orchestrator.servers.files import Resolved
from orchestrator.servers.flags import FlagTable

_SPECULATION_FLAGS = {
    "n_max": "spec-draft-n-max",
    "n_min": "spec-draft-n-min",
    "p_min": "spec-draft-p-min",
    "relaxed_top_n": "spec-draft-relaxed-top-n",
    "relaxed_min_ratio": "spec-draft-relaxed-min-ratio",
}
_NEEDS_DRAFTER = frozenset({"draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"})
# An n-gram drafter may find nothing to draft in a short warm-up; a model drafter always drafts.
_MODEL_DRAFTING_PREFIX = "draft-"
# cpp-httplib makes further threads only when none is idle by its own count, which lags behind a burst: new
# connections then wait behind kept-alive ones for seconds. Idle threads cost next to nothing.
_HTTP_THREADS = 64


@dataclass(frozen=True)
class Launch:
    """Everything that decides how a server runs. Two equal launches need no restart."""

    spec: ModelSpec = field(compare=False)
    target: Path
    drafter: Path | None
    argv: tuple[str, ...]
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def spec_type(self) -> str:
        """llama-server's --spec-type."""
        return self.spec.speculation.type

    @property
    def must_draft(self) -> bool:
        """Whether every warm-up has to produce drafts."""
        return any(map(_is_model_drafting, self.spec_type.split(",")))

    @property
    def shown_argv(self) -> tuple[str, ...]:
        """`argv` without folders: fit for clients."""
        hidden = {str(p): p.name for p in (self.target, self.drafter) if p is not None}
        return tuple(hidden.get(a, a) for a in self.argv)


def plan_launch(resolved: Resolved, overrides: dict[str, FlagValue], table: FlagTable) -> Launch:
    """Arguments for a model with flags of the operator on top; SlipstreamError invalid_flag names what is wrong."""
    spec, target, drafter = resolved.spec, resolved.target, resolved.drafter
    flags = check_flags(spec, overrides, table)
    argv = ["--model", str(target), "--alias", spec.name, "--host", "127.0.0.1", "--port", "0", "--offline"]
    argv += ["--metrics", "--slots", "--spec-type", spec.speculation.type]
    if drafter is not None:
        argv += ["--spec-draft-model", str(drafter)]
    if "threads-http" not in flags and table.has("threads-http"):
        flags["threads-http"] = _HTTP_THREADS
    return Launch(spec, target, drafter, (*argv, *table.argv(flags)), resolved.warnings)


def check_flags(spec: ModelSpec, overrides: dict[str, FlagValue], table: FlagTable) -> dict[str, FlagValue]:
    """Every flag of `spec` and of the operator, checked; the files need not be there."""
    set_flags = table.check(spec.server) | table.check(overrides)
    # The operator's own flag goes before the model file's `speculation`.
    flags = _speculation_flags(spec.speculation, table, spec.drafter is not None) | set_flags
    if flags.get("spec-draft-n-max") == 0 and any(map(_is_model_drafting, spec.speculation.type.split(","))):
        raise SlipstreamError(
            Code.INVALID_FLAG,
            f"speculation.n_max is 0, and {spec.speculation.type} then drafts nothing",
            hint="set n_max to 1 or more, or the type to `none`",
        )
    return flags


def _is_model_drafting(spec_type: str) -> bool:
    return spec_type.startswith(_MODEL_DRAFTING_PREFIX)


def _speculation_flags(speculation: Speculation, table: FlagTable, has_drafter: bool) -> dict[str, FlagValue]:
    known = table.choices_of("spec-type")
    for kind in speculation.type.split(","):
        if kind not in known:
            raise SlipstreamError(
                Code.INVALID_FLAG,
                f"speculation.type {kind!r} is not known to this llama-server; it knows {', '.join(known)}",
            )
        if kind in _NEEDS_DRAFTER and not has_drafter:
            raise SlipstreamError(
                Code.INVALID_FLAG, f"speculation.type {kind!r} needs a `drafter` in the model file; there is none"
            )
    flags: dict[str, FlagValue] = {}
    for name, flag in _SPECULATION_FLAGS.items():
        value = getattr(speculation, name)
        if value is None:
            continue
        if not table.has(flag):
            raise SlipstreamError(
                Code.INVALID_FLAG,
                f"speculation.{name} needs --{flag}, which this llama-server ({table.version}) does not have",
                hint="build the patched server with `make server`",
            )
        flags[flag] = value
    return flags
