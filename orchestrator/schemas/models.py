"""Model files and the catalogue."""

import json

from pydantic import Field, JsonValue, field_validator, model_validator

from orchestrator.schemas.base import FlagValue, ModelName, Strict, View
from orchestrator.schemas.servers import ServerState
from orchestrator.schemas.sources import Source


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

    file: str = Field(description="Name of the file.")
    message: str = Field(description="What is wrong.")
    line: int | None = Field(None, description="Line, from 1.")
    column: int | None = Field(None, description="Column, from 1.")


class ModelView(View):
    """A model of the catalogue and the state of its server."""

    spec: ModelSpec = Field(description="The model file's content.")
    present: bool = Field(description="Whether every file it needs is on disk.")
    missing: tuple[str, ...] = Field((), description="Names of the files that are not there.")
    state: ServerState = Field(description="State of its server.")


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
    name: ModelName | None = Field(None, description="Name of the model; absent: told from the repository's.")
    drafter: str | None = Field(
        None,
        max_length=500,
        description="Drafter's quant or file in the same repository, or `none`; absent: the only one there is.",
    )


class AddView(View):
    """The model file that was written, or would be."""

    spec: ModelSpec = Field(description="Its content.")
    file: str = Field(description="Its name.")
    notes: tuple[str, ...] = Field((), description="What was decided, and what an operator should know.")
