"""The hub's address and token, from the environment. The token is shown to the hub's own origin alone."""

import os
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.addresses import split

_DEFAULT_ENDPOINT = "https://huggingface.co"
_OWN_FILE, _HUB_FILE = "SLIPSTREAM_HF_TOKEN_FILE", "HF_TOKEN_PATH"


def endpoint() -> str:
    """Address of the hub, without a slash at its end. SlipstreamError misconfigured for what is none."""
    address = (os.environ.get("HF_ENDPOINT", "").strip() or _DEFAULT_ENDPOINT).rstrip("/")
    parts = split(address)
    if parts is None or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.query or parts.fragment:
        # Not shown: what stands before an @ is a password.
        raise SlipstreamError(
            Code.MISCONFIGURED,
            "HF_ENDPOINT is no address of a hub: expected https://host, or https://host/path for a mirror under a "
            "path, without user and password",
        )
    return address


def hub_token() -> str | None:
    """HF_TOKEN, else the content of the file that SLIPSTREAM_HF_TOKEN_FILE or HF_TOKEN_PATH names."""
    if named := os.environ.get("HF_TOKEN", "").strip():
        return _checked(named, "HF_TOKEN")
    if path := os.environ.get(_OWN_FILE):
        return _checked(_read(Path(path), _OWN_FILE), _OWN_FILE)
    # To huggingface_hub, whose name this is, a file that is not there is no token.
    if (path := os.environ.get(_HUB_FILE)) and Path(path).expanduser().is_file():
        return _checked(_read(Path(path), _HUB_FILE), _HUB_FILE)
    return None


def _read(path: Path, variable: str) -> str:
    try:
        return path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no text"
        raise SlipstreamError(Code.MISCONFIGURED, f"the file that {variable} names cannot be read: {reason}") from e


def _checked(token: str, variable: str) -> str:
    """A token is one word of ASCII; anything else would break out of its header."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SlipstreamError(Code.MISCONFIGURED, f"{variable} holds no token: expected one word, such as hf_...")
    return token
