"""Images put into a registry piece by piece, with attestations where BuildKit puts them.

An engine's own builder makes no attestations, and a real SBOM needs a scanner out of another registry. See
docs/attestations/attestation-storage.md of BuildKit.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.registry import registry

Json = dict[str, Any]

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_STATEMENT = "application/vnd.in-toto+json"
_MANIFESTS = (INDEX, MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")


@dataclass(frozen=True)
class Registry:
    """`address` is what stands before the first slash of an image's name."""

    address: str
    http: httpx.Client

    def descriptor(self, repository: str, reference: str) -> Json:
        """What a tag or a digest names: type, digest and size."""
        accepted = {"accept": ", ".join(_MANIFESTS)}
        answer = self.http.get(f"/v2/{repository}/manifests/{reference}", headers=accepted).raise_for_status()
        return {
            "mediaType": answer.headers["content-type"],
            "digest": answer.headers["docker-content-digest"],
            "size": len(answer.content),
        }

    def put_blob(self, repository: str, media_type: str, content: bytes) -> Json:
        """Store bytes; the descriptor that names them."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = self.http.post(f"/v2/{repository}/blobs/uploads/").raise_for_status().headers["location"]
        self.http.put(httpx.URL(place).copy_add_param("digest", digest), content=content).raise_for_status()
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def put_manifest(self, repository: str, document: Json, tag: str | None = None) -> Json:
        """Store a manifest or an index under its digest, or under a tag; its descriptor."""
        content = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        headers = {"content-type": document["mediaType"]}
        put = self.http.put(f"/v2/{repository}/manifests/{tag or digest}", content=content, headers=headers)
        put.raise_for_status()
        return {"mediaType": document["mediaType"], "digest": digest, "size": len(content)}

    def put_attested(self, repository: str, tag: str, image: Json, predicates: Mapping[str, Json]) -> str:
        """An index of an image, which is a descriptor with a platform, and of predicates by their type. Its digest."""
        manifests = [image, self._attestations(repository, image["digest"], predicates)] if predicates else [image]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return str(self.put_manifest(repository, index, tag)["digest"])

    def _attestations(self, repository: str, image: str, predicates: Mapping[str, Json]) -> Json:
        layers = []
        algorithm, _, value = image.partition(":")
        for kind, predicate in predicates.items():
            statement = {
                "_type": "https://in-toto.io/Statement/v0.1",
                "subject": [{"name": "_", "digest": {algorithm: value}}],
                "predicateType": kind,
                "predicate": predicate,
            }
            layer = self.put_blob(repository, _STATEMENT, json.dumps(statement).encode())
            layers.append(layer | {"annotations": {"in-toto.io/predicate-type": kind}})
        nowhere = {"os": "unknown", "architecture": "unknown"}
        rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
        config = self.put_blob(repository, _CONFIG, json.dumps(nowhere | {"config": {}, "rootfs": rootfs}).encode())
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        marks = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": image}
        return self.put_manifest(repository, manifest) | {"platform": nowhere, "annotations": marks}


@contextmanager
def attesting_registry() -> Iterator[Registry]:
    """A registry of a test's own."""
    with registry() as address, httpx.Client(base_url=f"http://{address}", timeout=30, trust_env=False) as http:
        yield Registry(address, http)
