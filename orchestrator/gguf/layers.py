"""Which block of a model keeps what: all that was read, a window of it, or a state (llama.cpp, src/models/*.cpp)."""

from functools import cached_property
from typing import Any

from orchestrator.gguf.architectures import ANY_NUMBER
from orchestrator.gguf.contents import Contents
from orchestrator.gguf.header import Array
from orchestrator.gguf.types import ValueType

# Every so many blocks one attends to everything, the others within a window, where the file has no pattern of its own.
# Where it is the first of them and not the last, the number is negative.
_WINDOW_PERIODS = {
    **dict.fromkeys(("afmoe", "cohere2", "exaone-moe", "exaone4", "llama4", "mellum", "muse-glimmer", "olmo2"), 4),
    **{"gemma2": 2, "gpt-oss": 2, "gemma3n": 5, "gemma3": 6, "plamo3": 8},
    **{"cohere2moe": -4, "laguna": -4, "smallthinker": -4},
}
# These have a pattern in the file, or no window.
_WINDOW_PATTERNS = frozenset({"dots3note", "gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35"})
# Windows of those whose files need not say.
_WINDOWS = {"gemma2": 4096, "exaone-moe": 128, "llama4": 8192, "smallthinker": 4096}
_RECURRENT_BY_INTERVAL = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp", "minimax-01"})
_NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
# Encoders and diffusion models.
_WITHOUT_MEMORY = frozenset(
    {"bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert"}
    | {"gemma-embedding", "dream", "llada", "llada-moe", "rnd1", "clef", "wavtokenizer-dec"}
)
_WHOLE_NUMBERS = frozenset(type_ for type_ in ValueType if type_.is_integer or type_ is ValueType.BOOL)


class Layers:
    """The blocks of a model, told from its keys.

    A value that the file lacks, or has in a form that llama.cpp does not take, counts as 0.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._lists: dict[str, list[int]] = {}
        self.name = contents.header.architecture
        self.kind = contents.architecture.kind
        self.blocks = min(max(contents.announced_blocks or 0, 0), ANY_NUMBER)
        heads = 0 if contents.architecture.drafts_for else contents.announced_heads
        self.trunk = min(max(self.blocks - heads, 0), self.blocks)

    def one(self, name: str) -> int:
        """The value of a key that holds one number."""
        return max(self._contents.integer(name) or 0, 0)

    def of(self, name: str, block: int, default: int = 0) -> int:
        """The value of a key for a block, be it one for all or an array of them."""
        if (one := self._contents.integer(name)) is None:
            listed = self.listed(name)
            one = listed[block] if block < len(listed) else default
        return max(one, 0)

    def listed(self, name: str) -> list[int]:
        """The whole numbers of an array; none where there is no such array, or one too long for blocks."""
        if name not in self._lists:
            array: Any = self._contents.header.value(self._contents.header.arch_key(name))
            is_listing = isinstance(array, Array) and len(array) <= ANY_NUMBER and array.type in _WHOLE_NUMBERS
            self._lists[name] = [int(value) for value in array.values()] if is_listing else []
        return self._lists[name]

    def kv_heads(self, block: int) -> int:
        """Heads of keys and values; llama.cpp takes those of queries where the file does not say."""
        return self.of("attention.head_count_kv", block, self.of("attention.head_count", block))

    @cached_property
    def window_tokens(self) -> int:
        """Tokens that a block with a window attends to; 0 where there are no windows."""
        return self.one("attention.sliding_window") or _WINDOWS.get(self.name, 0)

    def has_kv(self, block: int) -> bool:
        """Whether a block keeps keys and values."""
        if self.name in _WITHOUT_MEMORY or self.kind == "recurrent":
            return False
        if self.name == "gemma3n":
            return block < 20
        if self.name == "gemma4":
            return block < self.blocks - self.one("attention.shared_kv_layers")
        if self.name in _NEMOTRON and block < self.trunk:
            return not self.is_recurrent(block) and not self.of("feed_forward_length", block)
        return self.name == "falcon-h1" or not self.is_recurrent(block)

    def is_recurrent(self, block: int) -> bool:
        """Whether a block keeps a state; some keep keys and values too."""
        if self.kind != "hybrid" or block >= self.trunk or self.name == "deepseek4":
            return self.kind == "recurrent"
        if self.name in _RECURRENT_BY_INTERVAL:
            listed = self.listed("attention.recurrent_layers")
            interval = self.one("full_attention_interval") or 4
            return bool(listed[block]) if block < len(listed) else (block + 1) % interval != 0
        if self.name in _NEMOTRON:
            return not self.kv_heads(block) and not self.of("feed_forward_length", block)
        return self.name == "falcon-h1" or not self.kv_heads(block)

    def is_window(self, block: int) -> bool:
        """Whether a block attends to a window only."""
        if not self.window_tokens:
            return False
        if self.name == "deepseek4":
            return True
        if self.name in ("lfm2", "lfm2moe"):
            return not self.is_recurrent(block)
        listed = self.listed("attention.sliding_window_pattern")
        if listed and (self.name in _WINDOW_PATTERNS or self.name in _WINDOW_PERIODS):
            return block < len(listed) and bool(listed[block])
        if self.name not in _WINDOW_PERIODS or block >= self.trunk:
            return False
        given = _WINDOW_PERIODS[self.name]
        period = self.one("attention.sliding_window_pattern") or abs(given)
        return block % period != 0 if given < 0 else block % period < period - 1
