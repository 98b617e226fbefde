"""What a conversation is made of, as digests: enough to tell whether one request goes on from another."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

_BLOCK_CHARS = 1024
_ROOT_ROLES = ("system", "developer")
# Tools and system messages are one digest: what shares more than that is the same conversation.
_LEAST_SHARED = 2


@dataclass(frozen=True)
class Conversation:
    """Digests in order: tools and system messages as one, then each message; or each block of a prompt.

    A prompt's last block is short and may grow, so its text is not compared by block: `tail_chars` is its length,
    and `text` lets an earlier tail be found in a later prompt.
    """

    digests: tuple[bytes, ...]
    tail: bytes = b""
    tail_chars: int = 0
    text: str = ""

    def shared(self, held: "Conversation") -> int:
        """How many digests from the first on are those of `held`."""
        pairs = zip(self.digests, held.digests, strict=False)
        return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(self), len(held)))

    def extends(self, held: "Conversation") -> bool:
        """Whether this one goes on from `held`: all of it, and then something."""
        if self.shared(held) < len(held) or not (held.digests or held.tail):
            return False
        if not held.tail_chars:
            return len(self) > len(held) or self.tail_chars > 0
        start = len(held) * _BLOCK_CHARS
        end = start + held.tail_chars
        return len(self.text) > end and _digest(self.text[start:end]) == held.tail

    def edits(self, held: "Conversation") -> bool:
        """Whether this is `held` with its last turns said anew, or `held` again."""
        shared = self.shared(held)
        # Prompts with one preamble have nothing else in common.
        return shared >= _LEAST_SHARED and (shared == len(held) if self.text else 2 * shared > len(held))

    def kept(self) -> "Conversation":
        """What is remembered of it: no text."""
        return Conversation(self.digests, self.tail, self.tail_chars)

    def __len__(self) -> int:
        return len(self.digests)


def conversation_of(request: dict[str, Any]) -> Conversation | None:
    """The one conversation of a request; None where it has several, or none that can be told."""
    if request.get("n", 1) not in (None, 1) or request.get("n_cmpl", 1) not in (None, 1):
        return None
    messages = request.get("messages", request.get("input"))
    if isinstance(messages, list):
        return _chat(request, messages)
    text = messages if isinstance(messages, str) else request.get("prompt")
    if isinstance(text, str):
        return _prompt(text)
    # An infill has no prompt, and nothing goes on from it.
    return Conversation(()) if "input_prefix" in request and text is None else None


def _chat(request: dict[str, Any], messages: list[Any]) -> Conversation:
    first = 0
    while first < len(messages) and isinstance(messages[first], dict) and messages[first].get("role") in _ROOT_ROLES:
        first += 1
    root = [request.get("tools"), request.get("system"), request.get("instructions"), *messages[:first]]
    return Conversation((_digest(root), *map(_digest, messages[first:])))


def _prompt(text: str) -> Conversation:
    whole = len(text) - len(text) % _BLOCK_CHARS
    blocks = tuple(_digest(text[i : i + _BLOCK_CHARS]) for i in range(0, whole, _BLOCK_CHARS))
    tail = text[whole:]
    return Conversation(blocks, _digest(tail) if tail else b"", len(tail), text)


def _digest(value: Any) -> bytes:
    said = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(said.encode(), digest_size=16).digest()
