"""Cut an MTP toy into the three files the wild has: trunk, loadable drafter, head-only donor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter

# Keys whose array has a value for every block, MTP blocks included. glm-dsa's attention.indexer.types is none of
# them: llama.cpp wants a value for the trunk's blocks alone.
BY_BLOCK = (
    "attention.compress_ratios",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "attention.sliding_window_pattern",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)


@dataclass(frozen=True)
class SplitFiles:
    """trunk loads with ``-m``, drafter with ``-md``; donor, the head's tensors alone, must be grafted."""

    trunk: Path
    drafter: Path
    donor: Path


def split_mtp(source: Path, into: Path) -> SplitFiles:
    """Write <stem>-trunk.gguf, <stem>-mtp.gguf and <stem>-donor.gguf into a directory.

    The trunk announces no MTP block and its arrays end with its last block; drafter and donor announce every block.
    So do the files that upstream's convert_hf_to_gguf.py makes with ``--no-nextn`` and ``--mtp``.
    Raises ValueError if ``source`` has no MTP block.
    """
    reader = GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    heads_key, blocks_key = f"{arch}.nextn_predict_layers", f"{arch}.block_count"
    if heads_key not in reader.fields:
        raise ValueError(f"{source} has no {heads_key}, expected a model with an MTP block")
    trunk_blocks = reader.fields[blocks_key].contents() - reader.fields[heads_key].contents()
    head = tuple(f"blk.{block}." for block in range(trunk_blocks, reader.fields[blocks_key].contents()))
    files = SplitFiles(*(into / f"{source.stem}-{part}.gguf" for part in ("trunk", "mtp", "donor")))
    without_head: dict[str, Any] = {heads_key: None, blocks_key: trunk_blocks}
    for key in (f"{arch}.{name}" for name in BY_BLOCK):
        if key in reader.fields and reader.fields[key].types[0] == GGUFValueType.ARRAY:
            without_head[key] = reader.fields[key].contents()[:trunk_blocks]
    _copy(reader, files.trunk, lambda name: not name.startswith(head), without_head)
    _copy(reader, files.drafter, lambda name: name.startswith(head) or not name.startswith("blk."), {})
    _copy(reader, files.donor, lambda name: name.startswith(head), {})
    return files


def _copy(reader: GGUFReader, path: Path, keep: Callable[[str], bool], changed: Mapping[str, Any]) -> None:
    """Copy keys and the kept tensors; a key in ``changed`` gets the value there, or goes if that is None."""
    writer = GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        value = changed.get(name, field.contents())
        if name.startswith("GGUF.") or name == "general.architecture" or value is None:
            continue
        is_array = field.types[0] == GGUFValueType.ARRAY
        writer.add_key_value(name, value, field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        if keep(tensor.name):
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
