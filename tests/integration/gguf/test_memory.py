"""The memory estimate against the sizes that llama-server reports of its buffers."""

import re
from pathlib import Path

import pytest

from orchestrator.gguf.contents import contents_of_file
from orchestrator.gguf.memory import Setup, estimate_memory
from orchestrator.gguf.types import TensorType
from orchestrator.schemas.gguf import MemoryEstimate
from tests.support import running_server, smollm2
from tests.toys import split_mtp, write_mtp, write_pair, write_replay
from tests.toys.architectures import ARCHITECTURES, write_architecture

pytestmark = pytest.mark.integration
MIB = 1 << 20
# The log says two digits of a MiB.
ROUNDING = 0.006 * MIB
DRAFT = 3
_BUFFER = re.compile(r"(KV|RS|model|compute|state) buffer size = +([\d.]+) MiB")


class Reported:
    """What a server's log says of its buffers, in bytes."""

    def __init__(self, log: str) -> None:
        self._found = [(kind, float(size) * MIB) for kind, size in _BUFFER.findall(log)]

    def of(self, *kinds: str) -> list[float]:
        return [size for kind, size in self._found if kind in kinds]


def served(binary: Path, model: Path, log: Path, *flags: str) -> Reported:
    # One pass over the buffers, without the trial one that fits them to a device.
    with running_server(binary, model, "--fit", "off", "--verbose", *flags, log=log) as server:
        return Reported(server.log_text())


def estimated(model: Path, setup: Setup) -> MemoryEstimate:
    seen = estimate_memory(contents_of_file(model), setup)
    assert seen is not None
    return seen


def near(found: float, lines: list[float], relative: float = 0.01) -> bool:
    return abs(found - sum(lines)) <= max(ROUNDING * len(lines), relative * found)


@pytest.mark.parametrize(("sequences", "unified"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_drafting_toy_of_every_architecture(
    patched_server: Path, tmp_path: Path, arch: str, sequences: int, unified: bool
) -> None:
    model = tmp_path / "model.gguf"
    write_architecture(arch, model)
    flags = ["--parallel", str(sequences), "--kv-unified" if unified else "--no-kv-unified"]
    flags += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(DRAFT)]
    reported = served(patched_server, model, tmp_path / "server.log", *flags)
    seen = estimated(model, Setup(4096, sequences, unified, DRAFT))
    assert near(seen.weights_bytes + seen.head_bytes, reported.of("model"), 0.05)
    assert near(seen.kv_bytes + seen.head_kv_bytes, reported.of("KV"))
    assert near(seen.recurrent_bytes, reported.of("RS", "state"))


@pytest.mark.parametrize("kind", ["pair", "replay"])
def test_toys_without_a_head(patched_server: Path, tmp_path: Path, kind: str) -> None:
    model = tmp_path / "model.gguf"
    if kind == "pair":
        write_pair(model, tmp_path / "drafter.gguf")
    else:
        write_replay(model)
    flags = ("--parallel", "2", "--ctx-size", "2048", "--spec-type", "none")
    reported = served(patched_server, model, tmp_path / "server.log", *flags)
    seen = estimated(model, Setup(2048, 2))
    assert near(seen.kv_bytes, reported.of("KV")) and near(seen.recurrent_bytes, reported.of("RS"))
    assert near(seen.weights_bytes, reported.of("model"), 0.05)


def test_a_drafter_beside_its_target(patched_server: Path, tmp_path: Path) -> None:
    write_mtp(tmp_path / "mtp.gguf")
    parts = split_mtp(tmp_path / "mtp.gguf", tmp_path)
    flags = ("--parallel", "1", "--spec-type", "draft-mtp", "--spec-draft-model", str(parts.drafter))
    reported = served(patched_server, parts.trunk, tmp_path / "server.log", *flags)
    trunk, drafter = (estimated(path, Setup(4096)) for path in (parts.trunk, parts.drafter))
    assert near(trunk.kv_bytes, reported.of("KV")[:1])
    assert near(drafter.kv_bytes + drafter.head_kv_bytes, reported.of("KV")[1:])
    assert near(trunk.weights_bytes, reported.of("model")[:1], 0.05)
    assert near(drafter.weights_bytes + drafter.head_bytes, reported.of("model")[1:], 0.05)


@pytest.mark.parametrize(
    ("ctx", "key_type", "value_type"),
    [
        (2048, TensorType.F16, TensorType.F16),
        (8192, TensorType.F16, TensorType.F16),
        (8192, TensorType.Q8_0, TensorType.Q8_0),
    ],
)
def test_a_real_model(
    patched_server: Path, tmp_path: Path, ctx: int, key_type: TensorType, value_type: TensorType
) -> None:
    model = smollm2.original()
    if model is None:
        pytest.skip("SmolLM2-135M is not in the store; `make demo` brings it")
    flags = ["--parallel", "1", "--ctx-size", str(ctx), "--spec-type", "none"]
    flags += ["--cache-type-k", key_type.name.lower(), "--cache-type-v", value_type.name.lower()]
    reported = served(patched_server, model, tmp_path / "server.log", *flags)
    seen = estimated(model, Setup(ctx, key_type=key_type, value_type=value_type))
    assert near(seen.kv_bytes, reported.of("KV"))
    assert near(seen.weights_bytes, reported.of("model"), 0.03)
    assert near(seen.compute_bytes, reported.of("compute"), 0.25)
