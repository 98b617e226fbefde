"""A stand-in for Sigstore's services, for the real cosign to sign and verify without a key and without the network.

It certifies whatever identity a test asks for, logs an entry, and serves the trust root (a TUF repository) that names
its keys. cosign checks all of it as it checks Sigstore's own: certificate, its timestamp of a CT log, inclusion in the
transparency log.
"""

import base64
import hashlib
import json
import secrets
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.cosign import Cosign
from tests.support.der import OCTETS, SEQUENCE, UTF8, der, extension, make_key, name, oid, signed, to_be_signed
from tests.support.serving import serving

Json = dict[str, Any]

GITHUB = "https://token.actions.githubusercontent.com"
_ORIGIN = "127.0.0.1"
_CA = name("A stand-in for Sigstore")
_SINCE = "start-time=2024-01-01T00:00:00Z"
_LATER = "2036-01-01T00:00:00Z"


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _canonical(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _signed_part(document: Json) -> bytes:
    """What signatures of TUF are of: JSON in which line feeds stand for themselves."""
    return _canonical(document).replace(b"\\n", b"\n")


class Sigstore(ThreadingHTTPServer):
    """Certificate authority, CT log, transparency log and trust root; `identity` is who asks next."""

    daemon_threads = True

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        home.mkdir()
        self.home, self.identity, self.issuer = home, "", GITHUB
        self.ca, self.ct, self.log, self.tuf = (make_key(home / f"{use}.key") for use in ("ca", "ct", "log", "tuf"))
        usages = [
            extension("2.5.29.19", der(SEQUENCE, b"\x01\x01\xff"), critical=True),
            extension("2.5.29.15", b"\x03\x02\x01\x06", critical=True),
        ]
        body = to_be_signed(1, (_CA, _CA), _a_minute_ago(), 24 * 60, self.ca.public, usages)
        self.ca_certificate = signed(body, self.ca)
        self.served: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def trusted_by(self, cosign: Cosign) -> None:
        """Have a cosign trust these services in place of Sigstore's, and sign with them."""
        (self.home / "ca.pem").write_text(ssl.DER_cert_to_PEM_cert(self.ca_certificate))
        (self.home / "ct.pub").write_text(self.ct.public_pem)
        (self.home / "log.pub").write_text(self.log.public_pem)
        root = cosign.run(
            *("trusted-root", "create", "--fulcio", f"url={self.url},certificate-chain={self.home}/ca.pem"),
            *("--rekor", f"url={self.url},public-key={self.home}/log.pub,{_SINCE}"),
            *("--ctfe", f"url={self.url},public-key={self.home}/ct.pub,{_SINCE}"),
        )
        first = self._publish("trusted_root.json", root.encode())
        checksum = hashlib.sha256(first).hexdigest()
        cosign.run("initialize", "--mirror", self.url, "--root", f"{self.url}/root.json", "--root-checksum", checksum)
        service = f"url={self.url},api-version=1,{_SINCE},operator=test"
        services = ("--fulcio", service, "--rekor", service, "--rekor-config", "ANY", "--oidc-provider", service)
        (cosign.home / "services.json").write_text(cosign.run("signing-config", "create", *services))

    def sign(self, cosign: Cosign, image: str, identity: str, issuer: str = GITHUB) -> None:
        """Sign an image without a key, as an identity of an issuer."""
        self.identity, self.issuer = identity, issuer
        claims = {"iss": issuer, "sub": identity, "aud": "sigstore", "exp": int(time.time()) + 600}
        # Nobody checks it here: who would issue it is not part of this.
        token = ".".join(_b64(part).rstrip("=") for part in (b'{"alg":"RS256"}', json.dumps(claims).encode(), b"none"))
        cosign.run("sign", "--identity-token", token, "--signing-config", "services.json", "--yes", image)

    def certify(self, public_pem: str) -> Json:
        """A certificate of ten minutes, with a timestamp of the CT log in it."""
        public = ssl.PEM_cert_to_DER_cert(_as_certificate(public_pem))
        fields = (secrets.randbits(63), (_CA, name("")), _a_minute_ago(), 10, public)
        extensions = [
            extension("2.5.29.15", b"\x03\x02\x07\x80", critical=True),
            extension("2.5.29.37", der(SEQUENCE, oid("1.3.6.1.5.5.7.3.3"))),
            extension("2.5.29.17", der(SEQUENCE, der(0x86, self.identity.encode())), critical=True),
            extension("1.3.6.1.4.1.57264.1.8", der(UTF8, self.issuer.encode())),
        ]
        timestamp = self._timestamp(to_be_signed(*fields, extensions))
        extensions.append(extension("1.3.6.1.4.1.11129.2.4.2", der(OCTETS, timestamp)))
        leaf = signed(to_be_signed(*fields, extensions), self.ca)
        chain = [ssl.DER_cert_to_PEM_cert(one) for one in (leaf, self.ca_certificate)]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def _timestamp(self, body: bytes) -> bytes:
        """A list of one signed certificate timestamp (RFC 6962) of a certificate without it."""
        milliseconds = int(time.time() * 1000)
        head = struct.pack(">BBQH", 0, 0, milliseconds, 1) + hashlib.sha256(self.ca.public).digest()
        signature = self.ct.sign(head + len(body).to_bytes(3, "big") + body + b"\0\0")
        one = b"\0" + hashlib.sha256(self.ct.public).digest() + struct.pack(">QH", milliseconds, 0)
        one += b"\x04\x03" + struct.pack(">H", len(signature)) + signature
        return struct.pack(">HH", len(one) + 2, len(one)) + one

    def enter(self, proposed: Json) -> tuple[str, Json]:
        """The entry of a log that has no other: its id, and Rekor's answer."""
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        hashed = {"envelopeHash": content["envelope"].encode(), "payloadHash": base64.b64decode(envelope["payload"])}
        spec: Json = {
            key: {"algorithm": "sha256", "value": hashlib.sha256(of).hexdigest()} for key, of in hashed.items()
        }
        pairs = zip(envelope["signatures"], content["verifiers"], strict=True)
        spec["signatures"] = [{"signature": one["sig"], "verifier": verifier} for one, verifier in pairs]
        body = _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        log = hashlib.sha256(self.log.public)
        entry: Json = {"body": _b64(body), "integratedTime": int(time.time()), "logID": log.hexdigest(), "logIndex": 7}
        promise = self.log.sign(_canonical(entry))
        root = hashlib.sha256(b"\0" + body).digest()
        head = f"{_ORIGIN} - 1\n1\n{_b64(root)}\n"
        note = f"{head}\n\u2014 {_ORIGIN} {_b64(log.digest()[:4] + self.log.sign(head.encode()))}\n"
        proof = {"checkpoint": note, "hashes": [], "logIndex": 0, "rootHash": root.hex(), "treeSize": 1}
        return root.hex(), entry | {"verification": {"signedEntryTimestamp": _b64(promise), "inclusionProof": proof}}

    def _publish(self, target: str, content: bytes) -> bytes:
        """A TUF repository with one file; its root."""
        key = {"keytype": "ecdsa", "scheme": "ecdsa-sha2-nistp256", "keyval": {"public": self.tuf.public_pem}}
        key_id = hashlib.sha256(_signed_part(key)).hexdigest()
        role = {"keyids": [key_id], "threshold": 1}
        roles = dict.fromkeys(("root", "targets", "snapshot", "timestamp"), role)
        digest = hashlib.sha256(content).hexdigest()
        listed = {target: {"length": len(content), "hashes": {"sha256": digest}}}
        documents: dict[str, Json] = {
            "1.root": {"consistent_snapshot": True, "keys": {key_id: key}, "roles": roles},
            "1.targets": {"targets": listed},
            "1.snapshot": {"meta": {"targets.json": {"version": 1}}},
            "timestamp": {"meta": {"snapshot.json": {"version": 1}}},
        }
        self.served[f"/targets/{digest}.{target}"] = content
        for title, document in documents.items():
            kind = title.rpartition(".")[2]
            said = document | {"_type": kind, "spec_version": "1.0.31", "version": 1, "expires": _LATER}
            signature = {"keyid": key_id, "sig": self.tuf.sign(_signed_part(said)).hex()}
            self.served[f"/{title}.json"] = json.dumps({"signed": said, "signatures": [signature]}).encode()
        self.served["/root.json"] = self.served["/1.root.json"]
        return self.served["/root.json"]


def _a_minute_ago() -> datetime:
    return datetime.now(UTC) - timedelta(minutes=1)


def _as_certificate(public_pem: str) -> str:
    """The standard library takes the armour off certificates alone."""
    return public_pem.replace("PUBLIC KEY", "CERTIFICATE").strip() + "\n"


class _Handler(BaseHTTPRequestHandler):
    server: Sigstore

    def do_GET(self) -> None:
        content = self.server.served.get(self.path)
        self._answer(404 if content is None else 200, content or b"{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/signingCert"):
            key = asked["publicKeyRequest"]["publicKey"]["content"]
            self._answer(200, json.dumps(self.server.certify(key)).encode())
        else:
            identifier, entry = self.server.enter(asked)
            self._answer(201, json.dumps({identifier: entry}).encode(), identifier)

    def _answer(self, status: int, content: bytes, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.send_header("etag", tag)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sigstore_trusted_by(cosign: Cosign) -> Iterator[Sigstore]:
    """The services, while the block lasts; a cosign trusts no others."""
    server = Sigstore(cosign.home / "sigstore")
    with serving(server):
        server.trusted_by(cosign)
        yield server
