"""What every schema is made of."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

ModelName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# What Linux takes for one name.
_LONGEST_NAME_BYTES = 255


def _unicode(value: str) -> str:
    value.encode()
    return value


def _relative(value: str) -> str:
    parts = set(value.split("/"))
    if value.startswith("/") or "\\" in value or "\0" in value or ".." in parts or parts <= {"", "."}:
        raise ValueError("expected a relative path without `..`")
    if any(len(part.encode()) > _LONGEST_NAME_BYTES for part in parts):
        raise ValueError(f"expected names of {_LONGEST_NAME_BYTES} bytes at most")
    return value


RelativeFile = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_relative)]
FlagValue = bool | int | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, AfterValidator(_unicode)]


class Strict(BaseModel):
    """An unknown key is an error: a typo must not be a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class View(BaseModel):
    """What the API answers. Unknown fields pass, so that an older client reads a newer orchestrator."""

    model_config = ConfigDict(frozen=True)


class Probe(View):
    """What a probe answers."""

    status: str = Field(description="`ok` or `ready`.", examples=["ok"])


class ErrorBody(View):
    """What was wrong (RFC 9457); some errors have further members."""

    type: str = Field(description="The code as a URN.", examples=["urn:slipstream:error:model_incomplete"])
    title: str = Field(description="The code in words.", examples=["model incomplete"])
    status: int = Field(description="HTTP status.", examples=[409])
    code: str = Field(description="Stable code: clients may switch on it.", examples=["model_incomplete"])
    detail: str = Field(
        description="What was wrong, with what value, and what would be right.",
        examples=["'smollm2-135m' is not complete: SmolLM2-135M-Instruct.Q4_1.gguf is missing"],
    )
    hint: str | None = Field(None, description="What to do about it.", examples=["slipstream pull smollm2-135m"])
