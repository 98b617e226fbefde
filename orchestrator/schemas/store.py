"""The store: what a repository offers, and what lies on disk."""

from enum import StrEnum

from pydantic import Field

from orchestrator.schemas.base import View


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

    file: str = Field(description="Path in the repository; of a split file, its first shard.")
    role: Role = Field(description="What it is for, told from its path.")
    quant: str | None = Field(None, description="Quantisation in its name, such as Q4_K_M.")
    files: tuple[str, ...] = Field(description="Every path that belongs to it; more than one for a split file.")
    size_bytes: int = Field(description="Bytes of all of them.")


class RepositoryView(View):
    """A Hugging Face repository at one commit."""

    repository: str = Field(description="`owner/name`.")
    commit: str = Field(description="Commit that the revision stood for when it was looked up.")
    candidates: tuple[Candidate, ...] = Field(description="GGUF files and what they are for.")


class StoredFile(View):
    """A file of the store, by content."""

    sha256: str | None = Field(description="Digest of its bytes; null for one that was put there by other means.")
    size_bytes: int = Field(description="Its size.")
    names: tuple[str, ...] = Field(description="Where it appears in the store, relative to its root.")
    origins: tuple[str, ...] = Field((), description="Where it came from.")
    references: tuple[str, ...] = Field((), description="Who needs it: `model NAME`, `graft FILE`, `server NAME`.")
    verified: float | None = Field(None, description="When its bytes were last compared, Unix seconds.")


class StoreView(View):
    """What the store holds."""

    files: tuple[StoredFile, ...] = Field(description="By name.")
    size_bytes: int = Field(description="Bytes of all of them, each content counted once.")
    partial_bytes: int = Field(description="Bytes of fetches that have not ended.")


class GcView(View):
    """What a garbage collection removed, or would remove."""

    dry_run: bool = Field(description="Whether nothing was touched.")
    removed: tuple[StoredFile, ...] = Field(description="Files nobody refers to.")
    freed_bytes: int = Field(description="Bytes of them, with those of abandoned partial files.")
