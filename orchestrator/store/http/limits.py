"""How patient a fetch is, and how eager."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Waits and sizes of a fetch. The defaults serve people; tests take shorter ones."""

    connect_seconds: float = 15.0
    stall_seconds: float = 30.0
    """A connection that brings no byte for so long is given up."""
    retries: int = 6
    """Failures in a row, without a byte between them, before a fetch gives up."""
    backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 30.0
    longest_wait_seconds: float = 600.0
    """The longest Retry-After that is waited for; who asks for more is an error."""
    connections: int = 8
    segment_bytes: int = 32 << 20
    """What one of several connections brings at a time."""
    measure_seconds: float = 0.4
    """How long a number of connections is measured before another is tried."""
    worth_seconds: float = 1.0
    """What would be over in that time gets no further connection."""
    record_seconds: float = 1.0
    """How often progress is made durable."""


DEFAULT = Limits()
# Somebody waits for the answer.
LOOK_UP = Limits(connect_seconds=10.0, stall_seconds=15.0, retries=2, longest_wait_seconds=15.0)
