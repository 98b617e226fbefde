"""GGUF files as gguf-py reads them: the oracle for what our writer wrote."""

from pathlib import Path
from typing import Any

from gguf import GGUFReader


def keys_of(path: Path) -> dict[str, Any]:
    """Decoded keys by name, in the order of the file."""
    fields = GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}


def tensors_of(path: Path) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    """Shape, type and bytes of each tensor by name, in the order of the file."""
    return {
        tensor.name: (tuple(int(n) for n in tensor.shape), tensor.tensor_type.name, tensor.data.tobytes())
        for tensor in GGUFReader(path).tensors
    }
