"""Addresses: whom they name, and whether that can be asked at all."""

from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """Scheme, host and port of an address, so that two of them can be compared."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}:{port_of(parts)}"


def port_of(parts: SplitResult) -> int:
    """The port that an address names, else the usual one of its scheme."""
    return parts.port or _PORTS.get(parts.scheme, 0)


def split(address: str) -> SplitResult | None:
    """Parts of an address; None for one that no connection can be opened to, since host or port are none."""
    try:
        parts = urlsplit(address)
        # Both raise ValueError: a port beyond 65535, a label of a name that is empty or longer than 63 bytes.
        is_sound = parts.port != 0 and bool((parts.hostname or "").encode("idna"))
    except ValueError:
        return None
    return parts if is_sound else None
