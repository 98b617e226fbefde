"""Every architecture's toy in the real llama-server: it loads, says its language, and its head drafts just that."""

from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support import LlamaServer, Toy, ToyBox
from tests.toys import ARCHITECTURES, SEVERAL_HEADS, split_mtp

pytestmark = pytest.mark.integration
PROMPT = "Hello A"
N_PREDICT = 48
DRAFT = ("--spec-type", "draft-mtp", "--spec-draft-n-max")


def answers_exactly(server: LlamaServer, toy: Toy, draft_n_max: int) -> None:
    """The answer is the language's, and where drafting is on every draft was good and none was spared."""
    answer = server.client.completion(PROMPT, N_PREDICT)
    assert list(answer.tokens) == toy.language.greedy(ord(PROMPT[-1]), N_PREDICT)
    assert answer.accepted_n == answer.draft_n
    # The first token is the prompt's; then a step says its drafts and one more token.
    assert answer.draft_n == (N_PREDICT - 1) * draft_n_max // (draft_n_max + 1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_toy_says_its_language_and_drafts_it(
    arch: str, toys: ToyBox, patched_server: Path, start_server: StartServer
) -> None:
    toy = toys.architecture(arch)
    answers_exactly(start_server(patched_server, toy, *DRAFT, "2"), toy, draft_n_max=2)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_trunk_alone_says_the_same_and_drafts_with_its_head_in_a_file_of_its_own(
    arch: str, toys: ToyBox, patched_server: Path, start_server: StartServer, tmp_path: Path
) -> None:
    toy = toys.architecture(arch)
    files = split_mtp(toy.path, tmp_path)
    answers_exactly(start_server(patched_server, files.trunk), toy, draft_n_max=0)
    drafting = start_server(patched_server, files.trunk, "--spec-draft-model", str(files.drafter), *DRAFT, "2")
    answers_exactly(drafting, toy, draft_n_max=2)


@pytest.mark.parametrize("arch", SEVERAL_HEADS)
def test_every_one_of_several_heads_drafts_a_token(
    arch: str, toys: ToyBox, patched_server: Path, start_server: StartServer
) -> None:
    toy = toys.architecture(arch, heads=2)
    # llama-server drafts no further than there are heads.
    answers_exactly(start_server(patched_server, toy, *DRAFT, "5"), toy, draft_n_max=2)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_head_misses_where_it_should_and_the_answer_stays(
    arch: str, toys: ToyBox, patched_server: Path, start_server: StartServer
) -> None:
    toy = toys.architecture(arch, noise=0.4, seed=3)
    answer = start_server(patched_server, toy, *DRAFT, "1").client.completion(PROMPT, N_PREDICT)
    said = toy.language.greedy(ord(PROMPT[-1]), N_PREDICT)
    assert list(answer.tokens) == said
    assert 0 < answer.accepted_n < answer.draft_n
