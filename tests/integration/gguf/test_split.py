"""Split models as gguf-py writes them, grafted and served."""

from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from orchestrator.gguf.extract import extract, strip
from orchestrator.gguf.graft import graft
from orchestrator.gguf.surgery import SplitLayout
from tests.conftest import StartServer
from tests.integration.gguf.test_roundtrip import DRAFTING, require_drafting
from tests.support import ToyBox
from tests.support.tensors import tensors_of

pytestmark = pytest.mark.integration
MOST_TENSORS = 7


def split(source: Path, stem: Path) -> list[Path]:
    """Shards `<stem>-00001-of-0000N.gguf`, written by gguf-py."""
    reader = GGUFReader(source)
    writer = GGUFWriter(stem, str(reader.fields["general.architecture"].contents()), split_max_tensors=MOST_TENSORS)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        is_array = field.types[0] == GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if is_array else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(stem.parent.glob(f"{stem.name}-*.gguf"))


@pytest.mark.parametrize("layout", ["single", "shard"])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_graft_of_either_layout_drafts(
    toys: ToyBox, tmp_path: Path, start_server: StartServer, patched_server: Path, layout: SplitLayout, is_split: bool
) -> None:
    toy = toys.mtp()
    trunk, donor = tmp_path / "trunk.gguf", tmp_path / "donor.gguf"
    strip(toy.path, trunk)
    extract(toy.path, donor, kind="donor")
    shards = split(trunk, tmp_path / "base") if is_split else [trunk]
    assert len(shards) == (3 if is_split else 1)
    plan = graft(shards[-1], donor, tmp_path / "grafted.gguf", layout=layout)
    assert len(plan.outputs) == (1 if layout == "single" else len(shards) + 1)
    require_drafting(start_server(patched_server, tmp_path / plan.outputs[0], *DRAFTING), toy.language)


def test_a_head_comes_out_of_a_split_model(
    toys: ToyBox, tmp_path: Path, start_server: StartServer, patched_server: Path
) -> None:
    toy = toys.mtp()
    shards = split(toy.path, tmp_path / "whole")
    extract(shards[1], tmp_path / "drafter.gguf", kind="drafter")
    found = strip(shards[2], tmp_path / "stripped.gguf")
    whole = tensors_of(toy.path)
    assert tensors_of(tmp_path / "drafter.gguf").items() <= whole.items()
    trunk, drafter = tmp_path / found.outputs[0], tmp_path / "drafter.gguf"
    server = start_server(patched_server, trunk, *DRAFTING, "--spec-draft-model", str(drafter))
    require_drafting(server, toy.language)
