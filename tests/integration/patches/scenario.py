"""What the tests of 0004 share: one prompt, the sizes, and how a request asks for relaxed acceptance."""

from typing import Any

PROMPT = "hello A"
N_MAX = 4
N_PREDICT = 100
KINDS = ["mtp", "hybrid", "pair", "replay"]


def top_n(rank: int, **fields: Any) -> dict[str, Any]:
    """Request fields that accept a draft up to this rank."""
    return {"speculative.relaxed_top_n": rank, **fields}
