"""Manifests and blobs of an Ollama store, as manifest/manifest.go and manifest/paths.go have them."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.ollama.access import forbidden
from orchestrator.store.ollama.name import OllamaName

_MEDIA = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_LARGEST_TEXT_BYTES = 16 << 20

Layer = dict[str, Any]


@dataclass(frozen=True)
class Blob:
    """A layer's file, there and readable, and its digest."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a model is made of. `root` and `label` are the store's."""

    root: Path
    label: str
    name: OllamaName
    layers: tuple[Layer, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """Last parts of the media types of its layers, such as `model` and `params`."""
        return frozenset(_kind(layer) for layer in self.layers)

    def of(self, kind: str) -> tuple[Layer, ...]:
        """Layers of a kind."""
        return tuple(layer for layer in self.layers if _kind(layer) == kind)

    def blob(self, layer: Layer) -> Blob:
        """The file of a layer; SlipstreamError source_failed when it is not there whole, or closed to us."""
        blob = self._named(layer)
        try:
            with blob.path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
        except PermissionError as e:
            raise forbidden(self.root, self.label, blob.path) from e
        except OSError as e:
            raise self._incomplete(blob, "is missing") from e
        expected_bytes = layer.get("size")
        if isinstance(expected_bytes, int) and size_bytes != expected_bytes:
            raise self._incomplete(blob, f"has {size_bytes} bytes, expected {expected_bytes}")
        return blob

    def text(self, layer: Layer) -> str:
        """Content of a layer that is text."""
        blob = self.blob(layer)
        try:
            return _read(blob.path).decode(errors="replace")
        except OSError as e:
            raise self._incomplete(blob, f"cannot be read: {e.strerror or e}") from e

    def last_text(self, kind: str) -> str | None:
        """Content of the last layer of a kind, which is the one that counts for Ollama."""
        layers = self.of(kind)
        return self.text(layers[-1]) if layers else None

    def _named(self, layer: Layer) -> Blob:
        found = _DIGEST.fullmatch(str(layer.get("digest")))
        if found is None:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"the manifest of {self.name} in the Ollama store names a layer without sha256"
            )
        return Blob(self.root / "blobs" / f"sha256-{found[1]}", found[1].lower())

    def _incomplete(self, blob: Blob, what: str) -> SlipstreamError:
        return SlipstreamError(
            Code.SOURCE_FAILED,
            f"{self.name} of the Ollama store is incomplete: the blob {blob.path.name} {what}",
            hint=again(self.name),
        )


def read_manifest(root: Path, label: str, name: OllamaName) -> Manifest | None:
    """The manifest of a model; None where there is none. SlipstreamError source_failed for one that is unreadable."""
    path = root / "manifests" / name.host / name.namespace / name.model / name.tag
    try:
        layers = json.loads(_read(path))["layers"] or []
        return Manifest(root, label, name, tuple(layer for layer in layers if isinstance(layer, dict)))
    except PermissionError as e:
        raise forbidden(root, label, path) from e
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise SlipstreamError(
            Code.SOURCE_FAILED, f"the manifest of {name} in the Ollama store cannot be read", hint=again(name)
        ) from e


def again(name: OllamaName) -> str:
    """What brings a model into an Ollama store."""
    return f"bring it with: ollama pull {name}"


def _kind(layer: Layer) -> str:
    return str(layer.get("mediaType")).removeprefix(_MEDIA)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LARGEST_TEXT_BYTES + 1)
    if len(data) > _LARGEST_TEXT_BYTES:
        raise OSError(f"larger than {_LARGEST_TEXT_BYTES} bytes")
    return data
