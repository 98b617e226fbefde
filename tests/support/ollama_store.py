"""An Ollama-style store, laid out as `ollama create` does it: manifests, and blobs named by their digest."""

import hashlib
import json
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.ollama.image."
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"

Layer = dict[str, Any]


class OllamaStoreMaker:
    """Writes models into the store at `root`. Contents may be files or bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "manifests").mkdir(parents=True, exist_ok=True)
        (root / "blobs").mkdir(exist_ok=True)

    def create(
        self,
        name: str,
        *,
        model: Path | bytes | None,
        draft: Path | bytes | None = None,
        projector: Path | bytes | None = None,
        template: str | None = None,
        system: str | None = None,
        params: dict[str, Any] | None = None,
        license: str | None = None,
        further: tuple[Layer, ...] = (),
    ) -> Path:
        """A model `[host/namespace/]name[:tag]`; its manifest."""
        texts = {"template": template, "system": system, "license": license}
        contents: dict[str, Path | bytes | None] = {"model": model, "draft": draft, "projector": projector}
        contents |= {kind: text.encode() if text is not None else None for kind, text in texts.items()}
        contents["params"] = None if params is None else json.dumps(params).encode()
        layers = [self.layer(kind, content) for kind, content in contents.items() if content is not None]
        config = self.layer("config", b'{"model_format":"gguf"}') | {"mediaType": CONFIG_TYPE}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config,
            "layers": [*layers, *further],
        }
        path = self.manifest(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(manifest))
        return path

    def layer(self, kind: str, content: Path | bytes) -> Layer:
        """A blob and the entry of a manifest for it."""
        data = content.read_bytes() if isinstance(content, Path) else content
        digest = hashlib.sha256(data).hexdigest()
        path = self.blob(digest)
        path.write_bytes(data)
        path.chmod(0o644)
        return {"mediaType": MEDIA + kind, "digest": f"sha256:{digest}", "size": len(data)}

    def blob(self, digest: str) -> Path:
        return self.root / "blobs" / f"sha256-{digest}"

    def manifest(self, name: str) -> Path:
        path, _, tag = name.partition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
        parts = path.split("/")
        usual = [HOST, NAMESPACE][: 3 - len(parts)]
        return self.root.joinpath("manifests", *usual, *parts, tag or TAG)
