"""Names of Ollama models, as types/model/name.go has them."""

import re
from dataclasses import dataclass
from typing import Self

from orchestrator.errors import Code, SlipstreamError

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
_PART = re.compile(r"\w[\w.-]{0,79}", re.ASCII)
_HOST = re.compile(r"\w[\w.:-]{0,349}", re.ASCII)


@dataclass(frozen=True)
class OllamaName:
    """A model's name in full."""

    host: str
    namespace: str
    model: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`[host/][namespace/]name[:tag]`; SlipstreamError invalid_request for anything else."""
        rest, tag = text, TAG
        # A colon before the last slash is that of the host's port.
        if text.rfind(":") > text.rfind("/"):
            rest, _, tag = text.rpartition(":")
        parts = rest.rsplit("/", 2)
        host, namespace, model = (HOST, NAMESPACE)[: 3 - len(parts)] + tuple(parts)
        name = cls(host, namespace, model, tag)
        if not name.is_valid:
            raise SlipstreamError(
                Code.INVALID_REQUEST, f"{text!r} is no name of an Ollama model, expected [host/][namespace/]name[:tag]"
            )
        return name

    @property
    def is_valid(self) -> bool:
        """Whether every part is one that Ollama takes, and so leads nowhere else in a path."""
        return bool(_HOST.fullmatch(self.host)) and all(map(_PART.fullmatch, (self.namespace, self.model, self.tag)))

    def __str__(self) -> str:
        """As Ollama shows it: the tag always, host and namespace where they are not the usual ones."""
        namespace = "" if (self.host, self.namespace) == (HOST, NAMESPACE) else f"{self.namespace}/"
        host = "" if self.host == HOST else f"{self.host}/"
        return f"{host}{namespace}{self.model}:{self.tag}"
