"""A real model and a head that was trained for it, grafted by the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.support import Completion, LlamaServer, smollm2
from tests.support.tensors import keys_of, tensors_of

pytestmark = pytest.mark.integration
N_PREDICT = 48
N_ALIKE = 8
# The donor's owner measured 24 % at n_max 1 on other chat prompts.
LEAST, MOST = 0.15, 0.35
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Explain to a child why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "How do I make a simple tomato soup?",
    "What is the difference between a list and a tuple in Python?",
    "Give me three tips for learning a new language.",
)


def cli(*arguments: str | Path) -> Any:
    command = [sys.executable, "-m", "orchestrator.cli", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = smollm2.original()
    if source is None:
        pytest.skip("SmolLM2-135M is not in the store; `make demo` brings it")
    if not smollm2.DONOR.is_file():
        pytest.skip(f"{smollm2.DONOR.name}, 5.9 MB, is not in ../shared/data beside this repository")
    path = tmp_path_factory.mktemp("smollm2") / "trunk.gguf"
    smollm2.write_trunk(source, path)
    return path


@pytest.fixture(scope="module")
def grafted(trunk: Path) -> Path:
    path = trunk.with_name("grafted.gguf")
    plan = cli("graft", trunk, smollm2.DONOR, path)
    assert (plan["base_blocks"], plan["head_blocks"], len(plan["tensors"])) == (30, 1, 18)
    return path


def ask(server: LlamaServer, question: str, n_predict: int = N_PREDICT) -> Completion:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return server.client.completion(prompt, n_predict)


def test_the_trunk_says_what_the_original_says(trunk: Path, start_server: StartServer, patched_server: Path) -> None:
    """For a while: rows in another order add up to other last bits, which in Q4_1 soon decide a near-tie."""
    source = smollm2.original()
    assert source is not None
    servers = [start_server(patched_server, path, "--parallel", "1", "--spec-type", "none") for path in (source, trunk)]
    for question in QUESTIONS[:2]:
        original, expressed = (ask(server, question, N_ALIKE).tokens for server in servers)
        assert original == expressed


def test_the_graft_drafts_as_well_as_its_head_was_trained_to(
    trunk: Path, grafted: Path, start_server: StartServer, patched_server: Path
) -> None:
    flags = ("--parallel", "1", "--spec-type", "draft-mtp", "--spec-draft-n-max", "1")
    drafting = start_server(patched_server, grafted, *flags)
    plain = start_server(patched_server, trunk, "--parallel", "1", "--spec-type", "none")
    drafted = accepted = 0
    for question in QUESTIONS:
        answer = ask(drafting, question)
        assert answer.tokens == ask(plain, question).tokens
        drafted += answer.draft_n
        accepted += answer.accepted_n
    assert drafted > 100
    assert LEAST < accepted / drafted < MOST, f"{accepted} of {drafted} accepted"


def test_extracted_again_the_head_is_the_donors(trunk: Path, grafted: Path, tmp_path: Path) -> None:
    cli("extract", grafted, tmp_path / "donor.gguf")
    assert tensors_of(tmp_path / "donor.gguf") == tensors_of(smollm2.DONOR)
    cli("strip", grafted, tmp_path / "stripped.gguf")
    assert (tmp_path / "stripped.gguf").read_bytes() == trunk.read_bytes()


def test_the_drafter_drafts_the_same(
    trunk: Path, grafted: Path, tmp_path: Path, start_server: StartServer, patched_server: Path
) -> None:
    cli("extract", grafted, tmp_path / "drafter.gguf", "--as", "drafter")
    assert keys_of(tmp_path / "drafter.gguf")["glm4moe.block_count"] == 31
    flags = ("--parallel", "1", "--spec-type", "draft-mtp", "--spec-draft-n-max", "1")
    server = start_server(patched_server, trunk, *flags, "--spec-draft-model", str(tmp_path / "drafter.gguf"))
    answer = ask(server, QUESTIONS[0])
    assert answer.draft_n > 0 and answer.accepted_n > 0
