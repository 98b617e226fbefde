"""A file elsewhere, and its bytes at an offset before it is fetched."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class RemoteFile:
    """What is known of a file before it is fetched. Its address may hold a secret: messages name `name` and `host`."""

    url: str = field(repr=False)
    name: str
    size_bytes: int | None = None
    sha256: str | None = None
    token_host: str | None = None
    """Origin, such as `https://huggingface.co`, that alone is shown the token; None: nobody is."""
    path: str = ""
    """Path in the repository of a Hugging Face hub, which may offer it by xet too; empty for any other file."""

    @property
    def source(self) -> str:
        """The kind of source it belongs to."""
        return "hf" if self.path else "url"

    @property
    def host(self) -> str:
        """Host of its address."""
        return urlsplit(self.url).hostname or ""
