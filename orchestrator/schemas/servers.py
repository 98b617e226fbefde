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
    STOPPING = "stopping"
    FAILED = "failed"


class Desired(StrEnum):
    """What the operator wants: kept running, or started by the first request."""

    RUNNING = "running"
    STOPPED = "stopped"


class Failure(View):
    """Why a server is not running."""

    reason: str = Field(
        description="Stable word: exited, killed, start_timeout, not_ready, no_draft, incomplete, preflight, plan."
    )
    message: str = Field(description="The same in a sentence.")
    exit_code: int | None = Field(None, description="Exit status of the process; negative for a signal.")
    log_tail: tuple[str, ...] = Field((), description="Last log lines of the process.")


class ServerView(View):
    """One server as it is now."""

    model: str = Field(description="Name of the model.")
    state: ServerState = Field(description="Where it is in its life.")
    desired: Desired = Field(description="What was asked for.")
    flags: dict[str, FlagValue] = Field(description="Flags set over the API; they go before the model file's.")
    argv: tuple[str, ...] = Field((), description="Arguments of the running process, folders left out.")
    spec_type: str = Field("none", description="Speculation of the running process.")
    pid: int | None = Field(None, description="Process id, while there is one.")
    since: float = Field(description="When it came into this state, Unix seconds.")
    start_seconds: float | None = Field(None, description="How long the last start took, seconds.")
    restarts: int = Field(0, description="Starts after the first, since the orchestrator started.")
    warnings: tuple[str, ...] = Field((), description="What an operator should know about this server.")
    failure: Failure | None = Field(None, description="Why it is not running, when it failed.")


class ServerList(View):
    """Every server, one a model."""

    servers: tuple[ServerView, ...] = Field(description="By model name.")


class ServerPut(Strict):
    """Desired state of a server. A field that is absent stays as it is; `flags` replaces the earlier set."""

    state: Desired | None = Field(None, description="`running` or `stopped`.")
    flags: dict[str, FlagValue] | None = Field(None, description="llama-server flags by long name.")


class SwapRequest(Strict):
    """Start one model in place of others."""

    start: ModelName = Field(description="The model to start.")
    stop: tuple[ModelName, ...] | None = Field(None, description="Models to stop; absent: every other one.")
    flags: dict[str, FlagValue] | None = Field(None, description="New flags for the model that starts.")


class Action(View):
    """One step of a plan."""

    do: Literal["stop", "start", "keep"] = Field(description="What happens.")
    model: str = Field(description="To which model.")
    why: str = Field(description="Reason in words.")
    argv: tuple[str, ...] = Field((), description="Arguments of the process to be started, folders left out.")


class Plan(View):
    """What a change would do (`?dry_run=true`)."""

    actions: tuple[Action, ...] = Field(description="In order.")


class FlagInfo(View):
    """One flag of the llama-server binary."""

    name: str = Field(description="Canonical long name without dashes.")
    names: tuple[str, ...] = Field(description="Every spelling.")
    value: str | None = Field(None, description="Placeholder of its value; null for a switch.")
    choices: tuple[str, ...] = Field((), description="The only values it takes, where the binary lists them.")
    help: str = Field(description="The binary's own description.")
    env: str | None = Field(None, description="The binary's environment variable for it.")
    refused: str | None = Field(None, description="Why it cannot be set here, when it cannot.")
