"""What every schema is made of."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

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
