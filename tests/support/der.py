"""Just enough of ASN.1's DER, and of X.509, to make certificates whose every field a test decides."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

BOOLEAN, INTEGER, BITS, OCTETS, OID, UTF8, SEQUENCE, SET, UTC_TIME = 1, 2, 3, 4, 6, 12, 0x30, 0x31, 23
_TRUE = b"\x01\x01\xff"


def der(tag: int, *parts: bytes) -> bytes:
    """A value by its tag."""
    content = b"".join(parts)
    size = len(content)
    length = (
        bytes([size]) if size < 0x80 else (n := size.to_bytes(4, "big").lstrip(b"\0"), bytes([0x80 | len(n)]) + n)[1]
    )
    return bytes([tag]) + length + content


def oid(dotted: str) -> bytes:
    """An object identifier."""
    first, second, *rest = map(int, dotted.split("."))
    content = bytes([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += bytes(reversed(digits))
    return der(OID, content)


def extension(dotted: str, content: bytes, *, critical: bool = False) -> bytes:
    """An extension of a certificate."""
    return der(SEQUENCE, oid(dotted), _TRUE if critical else b"", der(OCTETS, content))


@dataclass(frozen=True)
class Key:
    """A key on the curve P-256, in a file of openssl's."""

    file: Path

    def sign(self, content: bytes) -> bytes:
        """An ECDSA signature of the SHA-256."""
        return _openssl("dgst", "-sha256", "-sign", str(self.file), given=content)

    @property
    def public(self) -> bytes:
        """Its SubjectPublicKeyInfo."""
        return _openssl("pkey", "-in", str(self.file), "-pubout", "-outform", "DER")

    @property
    def public_pem(self) -> str:
        return _openssl("pkey", "-in", str(self.file), "-pubout").decode()


def make_key(file: Path) -> Key:
    """A new key."""
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(file))
    return Key(file)


def name(common: str) -> bytes:
    """A distinguished name; empty for an empty text."""
    return der(SEQUENCE, der(SET, der(SEQUENCE, oid("2.5.4.3"), der(UTF8, common.encode()))) if common else b"")


def to_be_signed(
    serial: int, names: tuple[bytes, bytes], start: datetime, minutes: int, public: bytes, extensions: Sequence[bytes]
) -> bytes:
    """What an issuer signs; `names` are its own and the subject's."""
    ends = (start, start + timedelta(minutes=minutes))
    validity = der(SEQUENCE, *(der(UTC_TIME, end.strftime("%y%m%d%H%M%SZ").encode()) for end in ends))
    version, number = der(0xA0, der(INTEGER, b"\x02")), der(INTEGER, b"\x01" + serial.to_bytes(8, "big"))
    listed = der(0xA3, der(SEQUENCE, *extensions))
    return der(SEQUENCE, version, number, _ECDSA, names[0], validity, names[1], public, listed)


def signed(body: bytes, key: Key) -> bytes:
    """The certificate."""
    return der(SEQUENCE, body, _ECDSA, der(BITS, b"\0" + key.sign(body)))


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, check=True, capture_output=True, timeout=30).stdout


_ECDSA = der(SEQUENCE, oid("1.2.840.10045.4.3.2"))
