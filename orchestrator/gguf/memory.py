"""What serving a model takes, by arithmetic on its header: the sizes that llama.cpp gives its buffers.

Sources: src/llama-hparams.cpp (widths), src/llama-model.cpp create_memory, src/llama-kv-cache*.cpp (cells),
src/llama-memory-recurrent.cpp.
"""

from dataclasses import dataclass

from orchestrator.gguf.contents import Contents
from orchestrator.gguf.layers import Layers
from orchestrator.gguf.types import TensorType
from orchestrator.schemas.gguf import MemoryEstimate

DEFAULT_CTX_TOKENS = 4096
_PADDING_TOKENS = 256
_F32_BYTES = 4
_WITH_INDEXER = frozenset({"deepseek32", "glm-dsa", "qwen4exp", "dots3note", "glm5-next", "hy_v4", "minimax-m3"})


@dataclass(frozen=True)
class Setup:
    """How a model is served, as far as its memory depends on it. `ctx_tokens` is that of all sequences together;
    `unified` is --kv-unified, under which each sequence may have all of it."""

    ctx_tokens: int = DEFAULT_CTX_TOKENS
    sequences: int = 1
    unified: bool = False
    draft_tokens: int = 0
    batch_tokens: int = 512
    key_type: TensorType = TensorType.F16
    value_type: TensorType = TensorType.F16


def estimate_memory(contents: Contents, setup: Setup | None = None) -> MemoryEstimate | None:
    """What a model takes, or a drafter beside one; None for what is neither or does not say its dimensions."""
    layers = Layers(contents)
    if contents.role not in ("model", "drafter") or not layers.blocks or not layers.one("embedding_length"):
        return None
    setup = setup or Setup()
    sizes = _Sizes(layers, setup)
    trunk, head = range(layers.trunk), range(layers.trunk, layers.blocks)
    if not contents.trunk or layers.name == "gemma4-assistant":
        # A drafter without a trunk, or one that shares the target's keys and values.
        trunk = range(0)
    elif layers.name in ("bailingmoe3", "deepseek4"):
        # The context of the trunk has room for the head too.
        trunk = range(layers.blocks)
    head_bytes = contents.head.size_bytes if contents.head else 0
    back = setup.draft_tokens if contents.architecture.rolls_back else 0
    tokens = contents.header.array("tokenizer.ggml.tokens")
    parts = {
        "weights_bytes": sum(tensor.size_bytes for tensor in contents.tensors.values()) - head_bytes,
        "head_bytes": head_bytes,
        "kv_bytes": sum(sizes.kv(block) for block in trunk),
        "head_kv_bytes": sum(sizes.head_kv(block) for block in head),
        "recurrent_bytes": sum(sizes.state(block) for block in trunk) * setup.sequences * (1 + back),
        "compute_bytes": sizes.compute(len(tokens) if tokens else 0),
    }
    return MemoryEstimate(
        ctx_tokens=setup.ctx_tokens, sequences=setup.sequences, total_bytes=sum(parts.values()), **parts
    )


class _Sizes:
    """Bytes that a block needs."""

    def __init__(self, layers: Layers, setup: Setup) -> None:
        self._layers = layers
        self._setup = setup
        self._streams = 1 if setup.unified else setup.sequences
        self._stream_cells = _padded(-(-setup.ctx_tokens // self._streams))
        self._cells = self._streams * self._stream_cells

    def kv(self, block: int) -> int:
        """Keys and values in the context of the trunk, with what an indexer or a compressor keeps."""
        layers = self._layers
        if not layers.has_kv(block):
            return 0
        if layers.name == "deepseek4":
            return self._deepseek4(block)
        total = self._attention(block)
        if layers.name in _WITH_INDEXER and not layers.is_window(block):
            total += self._indexer(block)
        return total

    def head_kv(self, block: int) -> int:
        """Keys and values of a block of a head, in the context that drafts."""
        indexer = self._indexer(block) if self._layers.name == "qwen4exp" else 0
        return self._attention(block) + indexer

    def state(self, block: int) -> int:
        """State of a recurrent block, of one sequence."""
        layers = self._layers
        if layers.name == "deepseek4":
            # Sums that a compressor has begun, and their scores (llama_dsv4_comp_state).
            ratio = layers.of("attention.compress_ratios", block)
            rows, parts = (2 * ratio, 2) if ratio == 4 else (ratio, 1)
            width = self._width("key", False) + (layers.one("attention.indexer.key_length") if ratio == 4 else 0)
            return rows * parts * width * 2 * _F32_BYTES
        return self._state_values() * _F32_BYTES if layers.is_recurrent(block) else 0

    def compute(self, tokens: int) -> int:
        """Rough: the mask of attention and the activations of a block, of one batch; the logits of each sequence.

        Sparse attention (indexers) takes far more.
        """
        layers = self._layers
        blocks = range(layers.blocks)
        dense = max((layers.of("feed_forward_length", block) for block in blocks), default=0)
        experts = max(
            (layers.of("expert_used_count", b) * layers.of("expert_feed_forward_length", b) for b in blocks), default=0
        )
        mask = 0 if layers.kind == "recurrent" else self._stream_cells * TensorType.F16.block_bytes
        activations = _F32_BYTES * (3 * max(dense, experts) + 4 * layers.one("embedding_length"))
        return self._setup.batch_tokens * (mask + activations) + tokens * _F32_BYTES * self._setup.sequences

    def _attention(self, block: int) -> int:
        layers, setup = self._layers, self._setup
        is_window = layers.is_window(block)
        heads = layers.kv_heads(block)
        row = _row_bytes(setup.key_type, heads * self._width("key", is_window))
        # Latent attention keeps one compressed row for both.
        if not (layers.one("attention.key_length_mla") and layers.one("attention.value_length_mla")):
            row += _row_bytes(setup.value_type, heads * self._width("value", is_window))
        return row * (self._window_cells() if is_window else self._cells)

    def _window_cells(self) -> int:
        in_stream = self._setup.sequences if self._setup.unified else 1
        window = self._layers.window_tokens * in_stream + self._setup.batch_tokens
        return self._streams * _padded(min(self._stream_cells, window))

    def _width(self, part: str, is_window: bool) -> int:
        layers = self._layers
        heads = layers.of("attention.head_count", 0)
        width = layers.one(f"attention.{part}_length") or (layers.one("embedding_length") // heads if heads else 0)
        return (layers.one(f"attention.{part}_length_swa") if is_window else 0) or width

    def _indexer(self, block: int) -> int:
        layers = self._layers
        full = layers.listed("attention.indexer.types")
        if (block < len(full) and not full[block]) or (
            layers.name == "minimax-m3" and block < layers.one("leading_dense_block_count")
        ):
            return 0
        rows = 2 if layers.name == "qwen4exp" else 1
        return self._cells * rows * _row_bytes(self._setup.key_type, layers.one("attention.indexer.key_length"))

    def _deepseek4(self, block: int) -> int:
        """Each sequence has a window of raw keys and, by the block's ratio, compressed ones and those of an indexer."""
        layers, setup = self._layers, self._setup
        window = _padded(min(self._stream_cells, layers.window_tokens + setup.batch_tokens))
        total = window * _row_bytes(setup.key_type, self._width("key", True))
        if (ratio := layers.of("attention.compress_ratios", block)) > 0:
            width = self._width("key", False) + (layers.one("attention.indexer.key_length") if ratio == 4 else 0)
            total += _padded(-(-self._stream_cells // ratio)) * _row_bytes(setup.key_type, width)
        return total * setup.sequences

    def _state_values(self) -> int:
        layers = self._layers
        heads = layers.of("attention.head_count", 0)
        kernel = layers.one("ssm.conv_kernel")
        if head_size := layers.one("wkv.head_size"):
            return ((layers.one("token_shift_count") or 2) + head_size) * layers.one("embedding_length")
        if cache := layers.one("shortconv.l_cache"):
            return layers.one("embedding_length") * (cache - 1)
        if kda := layers.one("kda.head_dim"):
            return 3 * (kernel - 1 if kernel else 3) * heads * kda + kda * kda * heads
        if layers.name == "minimax-01":
            return self._width("key", False) ** 2 * heads
        state, inner = layers.one("ssm.state_size"), layers.one("ssm.inner_size")
        return max(kernel - 1, 0) * (inner + 2 * layers.one("ssm.group_count") * state) + state * inner


def _padded(tokens: int) -> int:
    return -(-tokens // _PADDING_TOKENS) * _PADDING_TOKENS


def _row_bytes(type_: TensorType, values: int) -> int:
    return values // type_.block_values * type_.block_bytes
