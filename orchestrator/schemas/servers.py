"""Servers: state, plans, flags."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from orchestrator.schemas.base import FlagValue, ModelName, Strict, View


class ServerState(StrEnum):
    """Where a server is in its life."""

    STOPPED = "stopped"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


class Desired(StrEnum):
    """What the operator wants: kept running, or started by the first request."""

    RUNNING = "running"
    STOPPED = "stopped"


class Failure(View):
    """Why a server is not running."""

    reason: str = Field(
        description="Stable word: out_of_memory, unknown_argument, no_kernel_image, no_tensile_files, bad_file, port, "
        "exited, killed, start_timeout, not_ready, no_draft, unhealthy, no_accelerator, incomplete, preflight, hazard, "
        "does_not_fit, plan, host_failed, misconfigured, model_incomplete, server_start_failed, conflict, internal.",
        examples=["out_of_memory"],
    )
    message: str = Field(
        description="The same in a sentence.", examples=["llama-server ended with status 1: failed to allocate buffer"]
    )
    exit_code: int | None = Field(None, description="Exit status of the process; negative for a signal.", examples=[1])
    log_tail: tuple[str, ...] = Field(
        (), description="Last log lines of the process.", examples=[["error: failed to load model"]]
    )


class Hazard(View):
    """A combination that is known to go wrong, and what is done about it."""

    id: str = Field(description="Stable word, listed in docs/hazards.md.", examples=["short-warm-up"])
    message: str = Field(
        description="What goes wrong, with which llama.cpp, and where that is known from.",
        examples=["a first generation of one token has faulted on gfx906: the warm-up generates 16"],
    )
    flags: dict[str, FlagValue] = Field(
        default_factory=dict, description="Flags that were set to be safe.", examples=[{"ctx-checkpoints": 0}]
    )
    refuses: bool = Field(False, description="Whether a start is refused because of it.", examples=[False])


class Quarantine(View):
    """A model that keeps failing is not tried again for a while."""

    until: float = Field(description="When it may be tried again, Unix seconds.", examples=[1790000020.25])
    strikes: int = Field(description="Failures in a row.", examples=[2])


class InstanceView(View):
    """One llama-server of a model. During a change of flags there may be two."""

    id: int = Field(description="Number since the orchestrator started.", examples=[3])
    state: ServerState = Field(description="Where it is in its life.", examples=["ready"])
    host: str = Field(description="The host it runs on.", examples=["local"])
    pid: int | None = Field(None, description="Process id, where it is known.", examples=[4711])
    container: str | None = Field(
        None, description="Name of its container, where it runs in one.", examples=["slipstream-3f2a-smollm2-135m-3"]
    )
    running: int = Field(0, description="Requests that run on it.", examples=[1])
    needs_bytes: dict[str, int] = Field(
        default_factory=dict, description="Memory set aside for it, by device.", examples=[{"host": 290783232}]
    )
    since: float = Field(description="When it came into this state, Unix seconds.", examples=[1790000000.25])
    why: str = Field("", description="What brought it into this state.", examples=["loaded and warmed up"])


class ServerView(View):
    """One server as it is now."""

    model: str = Field(description="Name of the model.", examples=["smollm2-135m"])
    state: ServerState = Field(description="Where it is in its life.", examples=["ready"])
    desired: Desired = Field(description="What was asked for.", examples=["running"])
    flags: dict[str, FlagValue] = Field(
        description="Flags set over the API; they go before the model file's.", examples=[{"ctx-size": 8192}]
    )
    argv: tuple[str, ...] = Field(
        (),
        description="Arguments of the running process, folders left out.",
        examples=[["--model", "SmolLM2-135M-Instruct.Q4_1.gguf", "--ctx-size", "8192"]],
    )
    spec_type: str = Field("none", description="Speculation of the running process.", examples=["draft-mtp"])
    pid: int | None = Field(None, description="Process id, while there is one.", examples=[4711])
    since: float = Field(description="When it came into this state, Unix seconds.", examples=[1790000000.25])
    start_seconds: float | None = Field(None, description="How long the last start took, seconds.", examples=[1.8])
    loading_seconds: float | None = Field(
        None, description="How long the one that loads or warms up has done so, seconds.", examples=[0.9]
    )
    expected_load_seconds: float | None = Field(
        None,
        description="How long that took when it was last loaded so, seconds; null when it never was.",
        examples=[1.8],
    )
    restarts: int = Field(0, description="Starts after the first, since the orchestrator started.", examples=[0])
    warnings: tuple[str, ...] = Field(
        (),
        description="What an operator should know about this server.",
        examples=[["this llama-server is not patched"]],
    )
    failure: Failure | None = Field(None, description="Why it is not running, when it failed.")
    running: int = Field(0, description="Requests that run on it.", examples=[1])
    waiting: int = Field(0, description="Requests that wait for it.", examples=[0])
    waits_for: str | None = Field(None, description="Why they wait.", examples=["it is loading for 3 s"])
    hazards: tuple[Hazard, ...] = Field((), description="Known hazards of this model on its host, and what is done.")
    quarantine: Quarantine | None = Field(None, description="When it failed too often to be tried again at once.")
    instances: tuple[InstanceView, ...] = Field((), description="Its llama-servers, the one that serves first.")


class ServerList(View):
    """Every server, one a model."""

    servers: tuple[ServerView, ...] = Field(description="By model name.")


class ServerPut(Strict):
    """Desired state of a server. A field that is absent stays as it is; `flags` replaces the earlier set."""

    state: Desired | None = Field(None, description="`running` or `stopped`.", examples=["running"])
    flags: dict[str, FlagValue] | None = Field(
        None, description="llama-server flags by long name.", examples=[{"ctx-size": 8192, "load-mode": "mlock"}]
    )


class SwapRequest(Strict):
    """Start one model in place of others."""

    start: ModelName = Field(description="The model to start.", examples=["smollm2-135m"])
    stop: tuple[ModelName, ...] | None = Field(
        None, description="Models to stop; absent: every other one.", examples=[["gemma-4-e2b"]]
    )
    flags: dict[str, FlagValue] | None = Field(
        None, description="New flags for the model that starts.", examples=[{"ctx-size": 8192}]
    )


class Transition(View):
    """A change of state of a server, with its reason (`GET /api/events`)."""

    number: int = Field(description="Counts up from 1 since the orchestrator started.", examples=[17])
    at: float = Field(description="When, Unix seconds.", examples=[1790000000.25])
    model: str = Field(description="Name of the model.", examples=["smollm2-135m"])
    instance: int | None = Field(None, description="The instance it is about.", examples=[3])
    host: str | None = Field(None, description="The host of that instance.", examples=["local"])
    state: str = Field(description="The state it came into; `gone` when an instance has ended.", examples=["ready"])
    why: str = Field(description="The reason in words.", examples=["loaded and warmed up"])
    failure: str | None = Field(
        None,
        description="Why it failed, when it did: the stable word of a server's `failure`.",
        examples=["out_of_memory"],
    )
    changes: tuple[str, ...] = Field(
        (),
        description="Of one that became ready: in what it runs otherwise than the model's last one did, by names of "
        "flags and, in place of `host`, `image` and `devices`, of keys of the model file.",
        examples=[["ctx-size", "spec-draft-n-max"]],
    )


class Action(View):
    """One step of a plan."""

    do: Literal["stop", "start", "keep"] = Field(description="What happens.", examples=["start"])
    model: str = Field(description="To which model.", examples=["smollm2-135m"])
    why: str = Field(description="Reason in words.", examples=["not running"])
    argv: tuple[str, ...] = Field(
        (),
        description="Arguments of the process to be started, folders left out.",
        examples=[["--model", "SmolLM2-135M-Instruct.Q4_1.gguf"]],
    )


class Plan(View):
    """What a change would do (`?dry_run=true`)."""

    actions: tuple[Action, ...] = Field(description="In order.")


class FlagInfo(View):
    """One flag of the llama-server binary."""

    name: str = Field(description="Canonical long name without dashes.", examples=["ctx-size"])
    names: tuple[str, ...] = Field(description="Every spelling.", examples=[["-c", "--ctx-size"]])
    value: str | None = Field(None, description="Placeholder of its value; null for a switch.", examples=["N"])
    choices: tuple[str, ...] = Field(
        (), description="The only values it takes, where the binary lists them.", examples=[["on", "off", "auto"]]
    )
    help: str = Field(
        description="The binary's own description.",
        examples=["size of the prompt context (default: 0, 0 = loaded from model)"],
    )
    env: str | None = Field(
        None, description="The binary's environment variable for it.", examples=["LLAMA_ARG_CTX_SIZE"]
    )
    refused: str | None = Field(
        None, description="Why it cannot be set here, when it cannot.", examples=["it writes a file"]
    )
