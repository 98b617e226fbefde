"""The Ollama store of this machine: which models it has, and which files make one."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.reader import read_file
from orchestrator.store.ollama.access import forbidden
from orchestrator.store.ollama.manifest import Blob, Manifest, again, read_manifest
from orchestrator.store.ollama.name import OllamaName
from orchestrator.store.ollama.notes import notes_on

LayerName = Literal["model", "drafter", "projector"]

# Our word and Ollama's; `draft` is what the Modelfile's DRAFT makes (manifest/layer.go, MediaTypeImageDraft).
_FILES: dict[LayerName, str] = {"model": "model", "drafter": "draft", "projector": "projector"}
_PLACES = ("$OLLAMA_MODELS", "~/.ollama/models", "/usr/share/ollama/.ollama/models")
_SHOWN_MODELS = 20


@dataclass(frozen=True)
class OllamaModel:
    """A model as its manifest has it. Paths are blobs of the Ollama store; `digests` has their sha256 by layer."""

    name: str
    model: Path
    drafter: Path | None
    projector: Path | None
    template: str | None
    system: str | None
    parameters: dict[str, Any]
    licenses: tuple[str, ...]
    digests: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class OllamaStore:
    """A folder with `manifests/` and `blobs/`. `label` names it in messages, without anybody's home in it."""

    root: Path
    label: str

    @classmethod
    def find(cls) -> Self:
        """OLLAMA_MODELS, else the store in the home folder, else that of Ollama's installer on Linux.

        One that is named, or cannot be looked into, counts as there: reading from it says what is wrong.
        """
        if named := os.environ.get("OLLAMA_MODELS"):
            return cls(Path(named).absolute(), _PLACES[0])
        stores = [cls(Path(os.path.expanduser(place)), place) for place in _PLACES[1:]]
        return next((store for store in stores if store._may_be_there()), stores[-1])

    def list_models(self) -> tuple[str, ...]:
        """Names of all models that have a manifest, in order."""
        names = []
        try:
            for folder in _folders(self.root / "manifests", 3):
                host, namespace, model = folder.parts[-3:]
                for tag in os.listdir(folder):
                    name = OllamaName(host, namespace, model, tag)
                    if name.is_valid and (folder / tag).is_file():
                        names.append(str(name))
        except PermissionError as e:
            raise forbidden(self.root, self.label, Path(e.filename)) from e
        return tuple(sorted(names))

    def locate(self, name: str, layer: LayerName = "model") -> Path | None:
        """The file of a layer, if it is there whole and can be read. `read_model` says why it is not."""
        try:
            blob = self._blob(self._manifest(name), layer)
        except SlipstreamError:
            return None
        return blob.path if blob else None

    def read_model(self, name: str) -> OllamaModel:
        """Everything about a model.

        SlipstreamError source_not_found lists the models there are, source_failed names the closed folder or the
        blob that is missing, source_unsupported says what llama-server cannot load from blobs.
        """
        manifest = self._manifest(name)
        blobs = {layer: blob for layer in _FILES if (blob := self._blob(manifest, layer)) is not None}
        if "model" not in blobs:
            raise SlipstreamError(
                Code.SOURCE_UNSUPPORTED,
                f"{manifest.name} of the Ollama store has no GGUF file, only {', '.join(sorted(manifest.kinds))}",
            )
        header = read_file(blobs["model"].path)
        if (shards := header.integer("split.count") or 1) > 1:
            raise SlipstreamError(
                Code.SOURCE_UNSUPPORTED,
                f"{manifest.name} of the Ollama store is one of {shards} shards: llama-server finds the others by "
                "their names, and blobs have none",
            )
        paths = {layer: blob.path for layer, blob in blobs.items()}
        template = manifest.last_text("template") or manifest.last_text("prompt")
        return OllamaModel(
            name=str(manifest.name),
            model=paths["model"],
            drafter=paths.get("drafter"),
            projector=paths.get("projector"),
            template=template,
            system=manifest.last_text("system"),
            parameters=_parameters(manifest),
            licenses=tuple(manifest.text(layer) for layer in manifest.of("license")),
            digests={layer: blob.sha256 for layer, blob in blobs.items()},
            notes=notes_on(header, template, manifest.kinds, len(manifest.of("projector"))),
        )

    def _manifest(self, name: str) -> Manifest:
        wanted = OllamaName.parse(name)
        if (manifest := read_manifest(self.root, self.label, wanted)) is not None:
            return manifest
        if not self._may_be_there():
            raise SlipstreamError(
                Code.SOURCE_NOT_FOUND,
                f"there is no Ollama store on this machine that could have {wanted}; looked at {', '.join(_PLACES)}",
                hint="set OLLAMA_MODELS to the folder that holds `manifests` and `blobs`",
            )
        models = self.list_models()
        shown = ", ".join(models[:_SHOWN_MODELS]) or "none"
        more = f" and {len(models) - _SHOWN_MODELS} more" if len(models) > _SHOWN_MODELS else ""
        raise SlipstreamError(
            Code.SOURCE_NOT_FOUND,
            f"the Ollama store {self.label} has no model {wanted}; it has {shown}{more}",
            hint=again(wanted),
            details={"models": list(models)},
        )

    def _blob(self, manifest: Manifest, layer: LayerName) -> Blob | None:
        """The file of a layer; None if the model has none. Of several projectors the first counts, as for Ollama."""
        layers = manifest.of(_FILES[layer])
        if len(layers) > 1 and layer != "projector":
            raise SlipstreamError(
                Code.SOURCE_UNSUPPORTED,
                f"{manifest.name} of the Ollama store names {len(layers)} files as its {layer}, expected one",
            )
        return manifest.blob(layers[0]) if layers else None

    def _may_be_there(self) -> bool:
        try:
            self.root.stat()
        except PermissionError:
            return True
        except OSError:
            return False
        return True


def list_models() -> tuple[str, ...]:
    """Names of the models in this machine's Ollama store."""
    return OllamaStore.find().list_models()


def read_model(name: str) -> OllamaModel:
    """A model of this machine's Ollama store."""
    return OllamaStore.find().read_model(name)


def _parameters(manifest: Manifest) -> dict[str, Any]:
    text = manifest.last_text("params")
    try:
        parameters = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        parameters = None
    if not isinstance(parameters, dict):
        raise SlipstreamError(
            Code.SOURCE_FAILED, f"the parameters of {manifest.name} in the Ollama store are no JSON object"
        )
    return parameters


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders `depth` levels below; none where the first is not there. PermissionError passes."""
    if depth == 0:
        yield folder
        return
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if (folder / name).is_dir():
            yield from _folders(folder / name, depth - 1)
