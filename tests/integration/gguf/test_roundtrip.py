"""For every architecture that drafts with an MTP head: head out, head off, head on again, and llama-server drafts."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.gguf.compose import kept_groups, new_files
from orchestrator.gguf.copying import Meter
from orchestrator.gguf.extract import extract, strip
from orchestrator.gguf.graft import graft
from orchestrator.gguf.model import open_model
from orchestrator.gguf.output import write_files
from orchestrator.gguf.writer import lay_out
from tests.conftest import StartServer
from tests.support import LlamaServer
from tests.support.tensors import keys_of, tensors_of
from tests.toys import Language
from tests.toys.architectures import ARCHITECTURES, SEVERAL_HEADS, write_architecture

pytestmark = pytest.mark.integration
CASES = [(arch, heads) for arch in ARCHITECTURES for heads in ((1, 2) if arch in SEVERAL_HEADS else (1,))]
DRAFTING = ("--parallel", "1", "--spec-type", "draft-mtp", "--spec-draft-n-max", "2")
PROMPT = "round trip"
N_PREDICT = 24


@dataclass(frozen=True)
class Parts:
    """A toy, and what became of it."""

    whole: Path
    language: Language
    trunk: Path
    donor: Path
    drafter: Path
    grafted: Path


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    arch, heads = request.param
    folder = tmp_path_factory.mktemp(arch)
    whole, trunk, donor, drafter, grafted = (
        folder / f"{name}.gguf" for name in ("whole", "trunk", "donor", "drafter", "grafted")
    )
    language = write_architecture(arch, whole, heads=heads)
    strip(whole, trunk)
    extract(whole, donor, kind="donor")
    extract(whole, drafter, kind="drafter")
    graft(trunk, donor, grafted)
    return Parts(whole, language, trunk, donor, drafter, grafted)


def require_drafting(server: LlamaServer, language: Language) -> None:
    """The answer is the target's own, and most of it was drafted."""
    answer = server.client.completion(PROMPT, N_PREDICT)
    assert list(answer.tokens) == language.greedy(ord(PROMPT[-1]), N_PREDICT)
    assert answer.accepted_n > N_PREDICT / 3, f"{answer.draft_n} drafted, {answer.accepted_n} accepted\n{server.tail()}"


def test_every_tensor_comes_back_byte_for_byte(parts: Parts) -> None:
    whole, grafted = tensors_of(parts.whole), tensors_of(parts.grafted)
    assert grafted == whole
    assert tensors_of(parts.trunk).items() | tensors_of(parts.donor).items() == whole.items()
    assert tensors_of(parts.drafter).items() <= whole.items()


def test_every_key_comes_back(parts: Parts) -> None:
    grafted = {key: value for key, value in keys_of(parts.grafted).items() if not key.startswith("slipstream.")}
    assert grafted == keys_of(parts.whole)


def test_a_trunk_that_announces_its_head_gets_it_back(parts: Parts, tmp_path: Path) -> None:
    """Keys as in the whole model, tensors of the trunk: how converters leave it that keep both files apart."""
    model = open_model(parts.whole)
    removed = frozenset(tensors_of(parts.donor))
    (file,) = new_files(model.header, kept_groups(model, removed), {}, "announcing.gguf")
    write_files([lay_out(file)], tmp_path, inputs=[parts.whole], overwrite=False, meter=Meter(0))
    plan = graft(tmp_path / "announcing.gguf", parts.donor, tmp_path / "grafted.gguf")
    assert all(change.key.startswith("slipstream.") for change in plan.keys)
    assert tensors_of(tmp_path / "grafted.gguf") == tensors_of(parts.whole)


def test_stripping_the_graft_gives_the_trunk_byte_for_byte(parts: Parts, tmp_path: Path) -> None:
    strip(parts.grafted, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == parts.trunk.read_bytes()


def test_the_graft_drafts(parts: Parts, start_server: StartServer, unpatched_server: Path) -> None:
    """On the pin as it is; below on ours."""
    require_drafting(start_server(unpatched_server, parts.grafted, *DRAFTING), parts.language)


def test_the_drafter_drafts_for_the_trunk(parts: Parts, start_server: StartServer, patched_server: Path) -> None:
    server = start_server(patched_server, parts.trunk, *DRAFTING, "--spec-draft-model", str(parts.drafter))
    require_drafting(server, parts.language)
