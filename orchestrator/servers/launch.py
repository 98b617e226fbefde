"""From a model file to the arguments of a llama-server: pure, checked before anything is touched."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagValue, Hazard, ModelSpec, Speculation
from orchestrator.servers import hazards
from orchestrator.servers.drivers.base import Device
from orchestrator.servers.files import Resolved
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.hazards import Facts

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
class Site:
    """Where a server is to run, as far as its arguments depend on it."""

    host: str = "local"
    devices: tuple[Device, ...] = ()


_ANYWHERE = Site()


@dataclass(frozen=True)
class Launch:
    """Everything that decides how a server runs. Two equal launches need no restart.

    The address stands not in `argv`: the driver of `host` chooses it (`argv_at`). `flags` are those of `argv` that can
    be set. `devices` are the accelerators it is bound to, none when it may use all.
    """

    spec: ModelSpec = field(compare=False)
    target: Path
    drafter: Path | None
    argv: tuple[str, ...]
    host: str = "local"
    image: str | None = None
    devices: tuple[str, ...] = ()
    flags: dict[str, FlagValue] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    hazards: tuple[Hazard, ...] = field(default=(), compare=False)
    affinity: bool = field(default=False, compare=False)
    erases: bool = False
    is_patched: bool = field(default=True, compare=False)

    @cached_property
    def key(self) -> str:
        """A name for it that stays the same over restarts of ours."""
        said = json.dumps(
            [str(self.target), str(self.drafter), self.argv, self.host, self.image, self.devices, self.erases]
        )
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def argv_at(self, host: str, port: int, scratch: str) -> list[str]:
        """All arguments of a server that listens at an address; `scratch` is a folder that it may write to."""
        argv = ["--host", host, "--port", str(port)]
        if self.devices:
            # In front, so that an operator's own --device goes before it.
            argv += ["--device", ",".join(self.devices)]
        argv += self.argv
        if self.erases:
            # llama-server empties slots only where it may also save them; nobody but us can ask it to.
            argv += ["--slot-save-path", scratch]
        return argv

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


# What stands beside `flags` in a launch, by the flag of llama-server or the key of the model file that decides it.
_PARTS: dict[str, Callable[[Launch], object]] = {
    "model": lambda launch: launch.target,
    "spec-draft-model": lambda launch: launch.drafter,
    "spec-type": lambda launch: launch.spec_type,
    "place.host": lambda launch: launch.host,
    "place.image": lambda launch: launch.image,
    "place.devices": lambda launch: launch.devices,
    "slots": lambda launch: launch.erases,
}


def plan_launch(
    resolved: Resolved, overrides: dict[str, FlagValue], table: FlagTable, site: Site = _ANYWHERE
) -> Launch:
    """Arguments for a model with flags of the operator on top; SlipstreamError invalid_flag or hazard otherwise."""
    spec, target, drafter = resolved.spec, resolved.target, resolved.drafter
    flags = check_flags(spec, overrides, table)
    facts = Facts(
        architecture=resolved.architecture,
        spec_types=tuple(spec.speculation.type.split(",")),
        flags=flags,
        kinds=tuple(d.kind for d in site.devices if d.is_accelerator),
        build=table.build,
        is_patched=table.is_patched,
    )
    keeps_slots, erases_slots = hazards.keeps_slots(facts, spec.slots), hazards.erases_slots(facts, spec.slots)
    found = hazards.weigh(facts, table.has)
    flags = flags | {name: value for hazard in found for name, value in hazard.flags.items()}
    if "threads-http" not in flags and table.has("threads-http"):
        flags["threads-http"] = _HTTP_THREADS
    argv = ["--model", str(target), "--alias", spec.name, "--offline"]
    argv += ["--metrics", "--slots", "--spec-type", spec.speculation.type]
    if drafter is not None:
        argv += ["--spec-draft-model", str(drafter)]
    if facts.kinds and "gpu-layers" not in flags and table.has("gpu-layers"):
        # The default, and what makes the server say so when it finds no accelerator (common/arg.cpp).
        argv += ["--gpu-layers", "auto"]
    return Launch(
        spec,
        target,
        drafter,
        (*argv, *table.argv(flags)),
        site.host,
        spec.place.image,
        spec.place.devices,
        flags,
        resolved.warnings,
        found,
        affinity=keeps_slots,
        erases=erases_slots,
        is_patched=table.is_patched,
    )


def changes(old: Launch, new: Launch) -> tuple[str, ...]:
    """In what two launches differ, by name; empty when their keys are the same."""
    if old.key == new.key:
        return ()
    return tuple(
        sorted(name for name in old.flags.keys() | new.flags.keys() if old.flags.get(name) != new.flags.get(name))
    ) + tuple(name for name, of in _PARTS.items() if of(old) != of(new))


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
