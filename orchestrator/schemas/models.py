"""Model files and the catalogue."""

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, PositiveInt, field_validator, model_validator

from orchestrator.schemas.base import FlagValue, ModelName, Strict, View
from orchestrator.schemas.servers import ServerState
from orchestrator.schemas.sources import Source


class Graft(Strict):
    """An MTP head to be grafted onto `source`."""

    donor: Source = Field(description="File that holds the head's tensors.")


class Speculation(Strict):
    """How drafts are made and accepted. What is absent keeps llama-server's own default."""

    type: str = Field(
        "none", description="llama-server's --spec-type; several are separated by commas.", examples=["draft-mtp"]
    )
    n_max: int | None = Field(None, ge=0, description="Longest draft, tokens.", examples=[2])
    n_min: int | None = Field(None, ge=0, description="Shortest draft worth verifying, tokens.", examples=[0])
    p_min: float | None = Field(None, ge=0, le=1, description="Drafting ends below this probability.", examples=[0.0])
    relaxed_top_n: int | None = Field(
        None, ge=0, description="Accept a draft among the target's top N tokens; 0 is strict acceptance.", examples=[5]
    )
    relaxed_min_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Least probability of a relaxed token relative to the target's best.",
        examples=[0.1],
    )


class Keep(Strict):
    """How long a server stays, and who goes before whom."""

    pinned: bool = Field(
        False, description="Never ended to make room for another, nor for being idle.", examples=[False]
    )
    preload: bool = Field(False, description="Start with the orchestrator, where there is room.", examples=[True])
    idle_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="End it after this long without a request, seconds; absent: SLIPSTREAM_IDLE_SECONDS.",
        examples=[600.0],
    )
    priority: int = Field(
        0, ge=-10, le=10, description="Higher ones get memory first; one level is worth 30 s of waiting.", examples=[0]
    )
    group: ModelName | None = Field(
        None, description="Of the models of one group at most one is loaded at a time.", examples=["chat"]
    )


class Limits(Strict):
    """Bounds on the requests of a model."""

    concurrent: PositiveInt | None = Field(
        None,
        description="Requests passed to the server at a time; absent: no bound, the server itself queues.",
        examples=[4],
    )
    waiting: int | None = Field(
        None,
        ge=0,
        description="Requests that may wait for it here; absent: SLIPSTREAM_MAX_WAITING_REQUESTS.",
        examples=[100],
    )
    wait_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Longest wait of a request, seconds; absent: SLIPSTREAM_WAIT_TIMEOUT_SECONDS.",
        examples=[120.0],
    )


class Place(Strict):
    """Where a model runs. What is absent the scheduler chooses."""

    host: ModelName | None = Field(None, description="Name of a host of the hosts file.", examples=["local"])
    image: str | None = Field(
        None,
        min_length=1,
        max_length=300,
        description="Image, or a name of the host's `images`; Docker hosts alone.",
        examples=["stock"],
    )
    devices: tuple[str, ...] = Field(
        (),
        description="Accelerators by llama-server's own names, such as CUDA0; absent: those of the host.",
        examples=[["CUDA0"]],
    )
    memory: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="Bytes by device (`host` is RAM), in place of what is estimated from the file.",
        examples=[{"host": 2147483648, "CUDA0": 8589934592}],
    )


class SlotPolicy(Strict):
    """Which slot a conversation gets, and what happens to what the slot held."""

    affinity: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Keep a conversation on its slot; `auto`: for hybrid and recurrent models.",
        examples=["auto"],
    )
    erase: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Empty a slot before a request that does not go on from what it holds; `auto`: by hazard.",
        examples=["auto"],
    )


class ModelSpec(Strict):
    """One model file (`models/*.yaml`)."""

    name: ModelName = Field(description="The name clients send as `model`.", examples=["smollm2-135m"])
    source: Source = Field(description="Where the target's GGUF comes from.")
    drafter: Source | None = Field(None, description="Where the drafter's GGUF comes from.")
    graft: Graft | None = Field(None, description="MTP head for the target, in place of a drafter file.")
    speculation: Speculation = Field(default_factory=Speculation, description="Drafting and acceptance.")
    server: dict[str, FlagValue] = Field(
        default_factory=dict,
        description="llama-server flags by long name, `_` or `-` between words.",
        examples=[{"ctx_size": 8192, "parallel": 2, "flash_attn": "auto"}],
    )
    defaults: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Request fields used where the client is silent.",
        examples=[{"temperature": 0.6}],
    )
    keep: Keep = Field(default_factory=Keep, description="How long its server stays.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on its requests.")
    place: Place = Field(default_factory=Place, description="Where it runs.")
    slots: SlotPolicy = Field(default_factory=SlotPolicy, description="How its slots are given to conversations.")
    aliases: tuple[ModelName, ...] = Field((), description="Further names clients may send.", examples=[["smollm2"]])

    @field_validator("defaults")
    @classmethod
    def _can_be_sent(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        # They become part of request bodies, and YAML can say what no JSON reader takes.
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as e:
            raise ValueError("expected what JSON can say: finite numbers, and text that is Unicode") from e
        return value

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where its files come from: the target's, then the drafter's or the donor's."""
        further = self.drafter or (self.graft.donor if self.graft else None)
        return (self.source,) if further is None else (self.source, further)

    @model_validator(mode="after")
    def _one_drafter(self) -> "ModelSpec":
        if self.drafter is not None and self.graft is not None:
            raise ValueError("`drafter` and `graft` exclude each other: a grafted head is in the target's own file")
        return self


class FileProblem(View):
    """A model file that could not be loaded."""

    file: str = Field(description="Name of the file.", examples=["bad.yaml"])
    message: str = Field(description="What is wrong.", examples=["server: expected a mapping"])
    line: int | None = Field(None, description="Line, from 1.", examples=[3])
    column: int | None = Field(None, description="Column, from 1.", examples=[9])


class ModelView(View):
    """A model of the catalogue and the state of its server."""

    spec: ModelSpec = Field(description="The model file's content.")
    present: bool = Field(description="Whether every file it needs is on disk.", examples=[False])
    missing: tuple[str, ...] = Field(
        (), description="Names of the files that are not there.", examples=[["SmolLM2-135M-Instruct.Q4_1.gguf"]]
    )
    state: ServerState = Field(description="State of its server.", examples=["stopped"])


class ModelList(View):
    """The catalogue."""

    models: tuple[ModelView, ...] = Field(description="Valid models, by name.")
    problems: tuple[FileProblem, ...] = Field(description="Model files that could not be loaded.")


class AddRequest(Strict):
    """Make a model file from what lies somewhere."""

    origin: str = Field(
        min_length=1,
        max_length=500,
        description="`hf:owner/name[@revision][:quant or file]`, or `ollama:name[:tag]`.",
        examples=["hf:unsloth/gemma-4-E2B-it-GGUF:Q4_K_XL"],
    )
    name: ModelName | None = Field(
        None, description="Name of the model; absent: told from the repository's.", examples=["gemma-4-e2b"]
    )
    drafter: str | None = Field(
        None,
        max_length=500,
        description="Drafter's quant or file in the same repository, or `none`; absent: the only one there is.",
        examples=["Q8_0"],
    )


class AddView(View):
    """The model file that was written, or would be."""

    spec: ModelSpec = Field(description="Its content.")
    file: str = Field(description="Its name.", examples=["gemma-4-e2b.yaml"])
    notes: tuple[str, ...] = Field(
        (),
        description="What was decided, and what an operator should know.",
        examples=[["drafter: MTP/mtp-gemma-4-E2B-it-Q8_0.gguf, the only one there is"]],
    )
