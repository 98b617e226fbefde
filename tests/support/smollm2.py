"""SmolLM2, a llama, expressed as the trunk of a glm4moe: the same blocks under other names, so that it can have an MTP
head. Nothing is quantised anew, and greedy output is that of the original, token for token."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from orchestrator.catalog import load_catalog
from orchestrator.settings import Settings
from orchestrator.store import Layout
from tests import REPOSITORY

MODELS = REPOSITORY / "models"
# Trained for it; too large for the repository.
DONOR = REPOSITORY.parent / "shared" / "data" / "smollm2-135m-mtp-head-Q8_0.gguf"
ARCH = "glm4moe"
# The trunk routes no experts. These are the head's.
_EXPERT_KEYS = {
    "expert_count": 2,
    "expert_used_count": 1,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 768,
    "expert_gating_func": ExpertGatingFuncType.SIGMOID.value,
}
_PLAIN_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)


def original() -> Path | None:
    """SmolLM2-135M in the store; None where it has not been pulled."""
    place = Layout(MODELS, Settings().cache).place(load_catalog(MODELS).get("smollm2-135m").source)
    return None if place is None or place.missing else place.path


def write_trunk(source: Path, out: Path) -> None:
    """Write SmolLM2 as a glm4moe without a head.

    The architectures rotate heads differently: llama's pairs are neighbours, glm4moe's are half a head apart, so the
    rows of queries and keys change places. A quantisation block never crosses rows, so this is exact in every type.
    """
    reader = GGUFReader(source)
    fields = {name.removeprefix("llama."): field.contents() for name, field in reader.fields.items()}
    heads = {"attn_q.weight": fields["attention.head_count"], "attn_k.weight": fields["attention.head_count_kv"]}
    writer = GGUFWriter(out, ARCH)
    _copy_keys(reader, writer)
    for key in ("attention.key_length", "attention.value_length"):
        writer.add_uint32(f"{ARCH}.{key}", fields["rope.dimension_count"])
    writer.add_leading_dense_block_count(fields["block_count"])
    for name, value in _EXPERT_KEYS.items():
        writer.add_uint32(f"{ARCH}.{name}", value)
    writer.add_expert_weights_norm(False)
    for tensor in reader.tensors:
        kind = tensor.name.split(".", 2)[-1]
        data = _half_apart(tensor.data, heads[kind]) if kind in heads else tensor.data
        is_plain = tensor.tensor_type in _PLAIN_TYPES
        name = tensor.name.replace("ffn_norm", "post_attention_norm")
        writer.add_tensor(name, data, raw_dtype=None if is_plain else tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_keys(reader: GGUFReader, writer: GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        new = f"{ARCH}.{name.removeprefix('llama.')}" if name.startswith("llama.") else name
        is_array = field.types[0] == GGUFValueType.ARRAY
        writer.add_key_value(new, field.contents(), field.types[0], field.types[1] if is_array else None)


def _half_apart(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows [heads * size, bytes or values]: in each head (size / 2, 2) becomes (2, size / 2)."""
    size = rows.shape[0] // heads
    return np.ascontiguousarray(rows.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape))
