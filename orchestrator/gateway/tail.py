"""The end of an answer, where llama-server says what it did. Looked at once, when the answer is over."""

import json
from sys import float_info
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder()


class Figures(NamedTuple):
    """What the end of an answer says of it; None where it says nothing. Tokens drafted only where there were drafts.

    Of an answer with several sequences (`n`) they are those of one.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    predicted_seconds: float | None = None

    @property
    def per_token_seconds(self) -> float | None:
        """Time of each token after the first.

        `predicted_ms` runs from the first token's sampling, which belongs to the prompt, to the last one's
        (server_slot_stats in tools/server/server-common.h), so that n tokens are n - 1 steps.
        """
        if self.predicted_seconds is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return self.predicted_seconds / (self.output_tokens - 1)


NOTHING = Figures()


def figures_of(end: bytes, *, has_timings: bool = True) -> Figures:
    """What the last `timings`, or without them the last `usage`, in the end of an answer says.

    What a model or a prompt says cannot be taken for either: it stands in strings, where quotes are escaped. But
    /v1/messages gives a tool's input as an object of the model's own making; it has no timings, and its usage comes
    last.
    """
    timings = _last_object(end, b'"timings":') if has_timings else {}
    if (predicted_n := _count(timings, "predicted_n")) is not None:
        prompt_n = _count(timings, "prompt_n")
        return Figures(
            None if prompt_n is None else prompt_n + (_count(timings, "cache_n") or 0),
            predicted_n,
            _count(timings, "draft_n"),
            _count(timings, "draft_n_accepted"),
            _seconds(timings.get("predicted_ms")),
        )
    usage = _last_object(end, b'"usage":')
    openai, anthropic = _count(usage, "completion_tokens"), _count(usage, "output_tokens")
    given = _count(usage, "prompt_tokens" if "prompt_tokens" in usage else "input_tokens")
    cached = _count(usage, "cache_read_input_tokens") or 0
    return Figures(None if given is None else given + cached, anthropic if openai is None else openai)


def _last_object(end: bytes, key: bytes) -> dict[str, Any]:
    """The value of the last member with this key; empty if there is none, or no object."""
    start = end.rfind(key)
    if start < 0:
        return {}
    try:
        found = _DECODER.raw_decode(end[start + len(key) :].decode(errors="replace").lstrip())[0]
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _count(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if type(value) is int and value >= 0 else None


def _seconds(milliseconds: Any) -> float | None:
    is_time = type(milliseconds) in (int, float) and 0 <= milliseconds <= float_info.max
    return milliseconds / 1000 if is_time else None
