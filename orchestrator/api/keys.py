"""Keys: who a request says it is from. Nothing of a key is kept but its sha256."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import Code, SlipstreamError

NONE, UNKNOWN = "none", "unknown"
_SHOWN_DIGITS = 8


@dataclass(frozen=True)
class Caller:
    """`label` is what the audit log may show of the key. A key that is not known opens nothing."""

    label: str
    is_known: bool = False
    is_admin: bool = False


class Keys:
    """Admin keys open everything, inference keys the data plane and `/metrics`. Without any key all is open."""

    def __init__(self, admin_keys: Sequence[str], api_keys: Sequence[str]) -> None:
        self._admin = [_digest(k.encode()) for k in admin_keys]
        self._inference = [_digest(k.encode()) for k in api_keys]

    @property
    def is_empty(self) -> bool:
        """Whether there is no key, and so nothing to check."""
        return not self._admin and not self._inference

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Who sends these headers."""
        key = _given(headers)
        if self.is_empty or not key:
            return Caller(NONE)
        digest = _digest(key)
        # Every key is compared, and by its digest: the time tells neither which one was close nor how long it is.
        is_admin = any([hmac.compare_digest(digest, k) for k in self._admin])
        is_known = any([hmac.compare_digest(digest, k) for k in self._inference]) or is_admin
        return Caller(digest.hex()[:_SHOWN_DIGITS] if is_known else UNKNOWN, is_known, is_admin)

    def check(self, caller: Caller, path: str, *, is_admin_path: bool) -> None:
        """SlipstreamError unauthorized or forbidden unless this caller may ask for this path."""
        # With inference keys alone the control plane is closed, not open.
        if self.is_empty or caller.is_admin or (caller.is_known and not is_admin_path):
            return
        if caller.is_known:
            raise SlipstreamError(Code.FORBIDDEN, f"this key opens /v1, and {path[:200]} needs an admin key")
        if caller.label == UNKNOWN:
            raise SlipstreamError(Code.UNAUTHORIZED, "this key is not known here")
        raise SlipstreamError(Code.UNAUTHORIZED, "a key is needed: send `Authorization: Bearer KEY`")


def _given(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
