"""What a server is taken to hold against what it holds, on the processor."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.schemas import FlagValue, ModelSpec, PathSource, Place, Speculation
from orchestrator.servers.devices import host_memory
from orchestrator.servers.drivers.groups import group_bytes
from orchestrator.servers.files import ModelFiles
from orchestrator.servers.memory import needs
from tests.support import LlamaServer, running_server, smollm2
from tests.toys import write_hybrid, write_mtp, write_pair

pytestmark = pytest.mark.integration
MIB = 1 << 20
PROMPT = "1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4"


def warm(server: LlamaServer, slots: int) -> None:
    def generate(slot: int) -> None:
        server.client.completion(PROMPT, 16, id_slot=slot, temperature=0, ignore_eos=True)

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(generate, range(slots)))


def taken_and_held(binary: Path, spec: ModelSpec, folder: Path, slots: int) -> tuple[int, int]:
    """Bytes a server is taken to hold before it is started, and those it holds after a warm-up."""
    found = ModelFiles(folder, folder).resolve(spec)
    taken = needs(found, {k.replace("_", "-"): v for k, v in spec.server.items()}, (host_memory(),), Place())
    argv = [text for name, value in spec.server.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    argv += ["--spec-type", spec.speculation.type]
    if found.drafter is not None:
        argv += ["--spec-draft-model", str(found.drafter)]
    with running_server(binary, found.target, *argv, log=folder / "server.log") as server:
        warm(server, slots)
        held = group_bytes(server.process.pid)
    assert held is not None and set(taken) == {"host"}
    return taken["host"], held


def spec_of(path: Path, kind: str, server: dict[str, FlagValue], drafter: Path | None = None) -> ModelSpec:
    files = {} if drafter is None else {"drafter": PathSource(path=str(drafter))}
    return ModelSpec(
        name="m", source=PathSource(path=str(path)), speculation=Speculation(type=kind), server=server, **files
    )


@pytest.mark.parametrize("kind", ["mtp", "hybrid", "pair"])
def test_a_toy_holds_no_more_than_it_is_taken_for(patched_server: Path, tmp_path: Path, kind: str) -> None:
    target, drafter = tmp_path / "m.gguf", tmp_path / "d.gguf"
    if kind == "pair":
        write_pair(target, drafter)
    else:
        (write_mtp if kind == "mtp" else write_hybrid)(target)
    drafts = "draft-simple" if kind == "pair" else "draft-mtp"
    spec = spec_of(target, drafts, {"ctx_size": 4096, "parallel": 2}, drafter if kind == "pair" else None)
    taken, held = taken_and_held(patched_server, spec, tmp_path, 2)
    assert held <= taken <= held + 64 * MIB, f"taken for {taken / MIB:.1f} MiB, holds {held / MIB:.1f} MiB"


@pytest.mark.parametrize(
    "flags",
    [
        {"ctx_size": 2048, "parallel": 1},
        {"ctx_size": 8192, "parallel": 4},
        {"ctx_size": 8192, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    ],
)
def test_a_real_model_holds_about_what_it_is_taken_for(
    patched_server: Path, tmp_path: Path, flags: dict[str, FlagValue]
) -> None:
    model = smollm2.original()
    if model is None:
        pytest.skip("SmolLM2 has not been pulled")
    slots = int(flags["parallel"])
    taken, held = taken_and_held(patched_server, spec_of(model, "none", flags), tmp_path, slots)
    assert held <= taken <= 1.15 * held, f"taken for {taken / MIB:.1f} MiB, holds {held / MIB:.1f} MiB"
