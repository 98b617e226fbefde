"""Preflight on the real server: what it calls an error ends the server or never drafts; what is clean drafts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import httpx
import pytest

from orchestrator.gguf.preflight import preflight
from orchestrator.gguf.types import ValueType
from tests.integration.gguf.damaged import (
    Bench,
    first_alone,
    page,
    projector,
    renamed,
    with_bos,
    with_scalar,
    without_tokenizer,
)
from tests.support import running_server
from tests.support.gguf_bytes import Items, edited
from tests.toys.architectures import ARCHITECTURES, SEVERAL_HEADS, write_architecture
from tests.toys.vocabulary import END_OF_TEXT, IM_END

pytestmark = pytest.mark.integration
PROMPT = [40, 41, 42]
N_PREDICT = 24
MTP, SIMPLE = ("draft-mtp",), ("draft-simple",)

# Ends, or ends with the first request; fails every request; serves and never drafts; serves and drafts.
Outcome: TypeAlias = Literal["ends", "fails", "silent", "drafts"]


@dataclass(frozen=True)
class Setup:
    """What llama-server is started with."""

    model: Path
    drafter: Path | None = None
    types: tuple[str, ...] = ()
    n_max: int | None = None

    def flags(self) -> list[str]:
        flags = ["--parallel", "1", "--spec-type", ",".join(self.types) or "none"]
        flags += ["--spec-draft-model", str(self.drafter)] if self.drafter else []
        return flags + (["--spec-draft-n-max", str(self.n_max)] if self.n_max is not None else [])


def outcome(binary: Path, setup: Setup, log: Path) -> Outcome:
    try:
        with running_server(binary, setup.model, *setup.flags(), log=log) as server:
            answer = server.client.completion(PROMPT, N_PREDICT)
            assert len(answer.tokens) == N_PREDICT
            return "drafts" if answer.draft_n else "silent"
    except (RuntimeError, httpx.TransportError):
        return "ends"
    except httpx.HTTPStatusError:
        return "fails"


def codes(setup: Setup) -> set[str]:
    problems = preflight(setup.model, setup.drafter, setup.types, setup.n_max)
    return {problem.code for problem in problems if problem.severity == "error"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield Bench(tmp_path_factory.mktemp("preflight"))


def cut_head(arch: str) -> Callable[[Bench], Setup]:
    return lambda b: Setup(b.without_feed_forward(arch))


CASES: dict[str, tuple[Callable[[Bench], Setup], set[str], Outcome]] = {
    "no head": (lambda b: Setup(b.parts.trunk, types=MTP), {"no_head"}, "ends"),
    "no head in the architecture": (lambda b: Setup(b.target, types=MTP), {"no_head"}, "ends"),
    "eh_proj missing": (
        lambda b: Setup(b.without(b.mtp, "blk.2.nextn.eh_proj.weight"), types=MTP),
        {"missing_head_tensor"},
        "ends",
    ),
    "enorm missing": (
        lambda b: Setup(b.without(b.mtp, "blk.2.nextn.enorm.weight"), types=MTP),
        {"missing_head_tensor"},
        "ends",
    ),
    "attention missing": (
        lambda b: Setup(b.without(b.hybrid, "blk.4.attn_q.weight"), types=MTP),
        {"missing_head_tensor"},
        "ends",
    ),
    "enorm missing, head not used": (
        lambda b: Setup(b.without(b.mtp, "blk.2.nextn.enorm.weight")),
        {"missing_head_tensor"},
        "ends",
    ),
    "eh_proj missing, head not used": (
        lambda b: Setup(b.without(b.mtp, "blk.2.nextn.eh_proj.weight")),
        set(),
        "silent",
    ),
    "eh_proj missing, head not used, hybrid": (
        lambda b: Setup(b.without(b.hybrid, "blk.4.nextn.eh_proj.weight")),
        {"missing_head_tensor"},
        "ends",
    ),
    "announced in an architecture without heads": (
        lambda b: Setup(
            edited(b.target, b.path("llama"), keys={"llama.block_count": 3, "llama.nextn_predict_layers": 1})
        ),
        set(),
        "silent",
    ),
    "announced in an architecture without heads, counted among the trunk": (
        lambda b: Setup(edited(b.target, b.path("counted"), keys={"llama.nextn_predict_layers": 1})),
        {"missing_head_tensor"},
        "ends",
    ),
    "announced by deepseek4, which counts it with its tensors only": (
        lambda b: Setup(
            edited(b.trunk_of("deepseek4"), b.path("ds4"), keys={"deepseek4.nextn_predict_layers": 1}),
        ),
        set(),
        "silent",
    ),
    "no nextn tensor, head not used": (
        lambda b: Setup(edited(b.mtp, b.path("cut"), keep=lambda name: ".nextn." not in name)),
        set(),
        "silent",
    ),
    "no nextn tensor, head not used, hybrid": (
        lambda b: Setup(edited(b.hybrid, b.path("cut-hybrid"), keep=lambda name: ".nextn." not in name)),
        {"missing_head_tensor"},
        "ends",
    ),
    **{f"{arch} without what only its head's graph needs": (cut_head(arch), set(), "silent") for arch in SEVERAL_HEADS},
    "announced only": (lambda b: Setup(b.announced(b.mtp, 2), types=MTP), {"head_missing"}, "ends"),
    "announced only, not used": (lambda b: Setup(b.announced(b.mtp, 2)), set(), "silent"),
    "announced only, with a drafter": (
        lambda b: Setup(b.announced(b.mtp, 2), b.parts.drafter, MTP),
        set(),
        "drafts",
    ),
    "announced only, hybrid": (lambda b: Setup(b.announced(b.hybrid, 4)), {"head_missing"}, "ends"),
    "not announced": (
        lambda b: Setup(b.changed(b.mtp, nextn_predict_layers=None), types=MTP),
        {"blocks_disagree"},
        "ends",
    ),
    "announced as none": (
        lambda b: Setup(b.changed(b.hybrid, nextn_predict_layers=0), types=MTP),
        {"blocks_disagree"},
        "ends",
    ),
    "block_count too small": (lambda b: Setup(b.changed(b.mtp, block_count=2)), {"blocks_disagree"}, "ends"),
    "block_count too large": (lambda b: Setup(b.changed(b.mtp, block_count=4)), {"blocks_disagree"}, "ends"),
    "block_count beyond llama.cpp": (
        lambda b: Setup(b.changed(b.mtp, block_count=513)),
        {"block_count_invalid"},
        "ends",
    ),
    "dense head": (
        lambda b: Setup(b.changed(b.mtp, leading_dense_block_count=3), types=MTP),
        {"head_not_moe"},
        "ends",
    ),
    "two blocks where one drafts": (lambda b: Setup(b.doubled(), types=MTP), {"too_many_head_blocks"}, "ends"),
    "two blocks, not used": (lambda b: Setup(b.doubled()), set(), "silent"),
    "a tensor the loader does not know": (
        lambda b: Setup(
            edited(
                b.mtp,
                b.path("stranger"),
                names=lambda n: (n, "blk.2.nextn.x.weight") if n.endswith("enorm.weight") else (n,),
            )
        ),
        {"unknown_head_tensor"},
        "ends",
    ),
    "no graph for the head": (lambda b: Setup(b.unsupported(), types=MTP), {"mtp_unsupported"}, "ends"),
    "no graph, head not used": (lambda b: Setup(b.unsupported()), set(), "silent"),
    "vocabulary of another size": (
        lambda b: Setup(
            edited(b.mtp, b.path("two"), keys={"tokenizer.ggml.tokens": Items(ValueType.STRING, ["a", "b"])})
        ),
        {"vocabulary_size_disagrees"},
        "ends",
    ),
    "tokens of the same text": (lambda b: Setup(b.tokens(b.mtp, t77="?")), {"vocabulary_repeats"}, "ends"),
    "tokens of the same text behind a NUL": (
        lambda b: Setup(b.tokens(b.target, t77="\0a", t78="\0b")),
        set(),
        "silent",
    ),
    "a number for a tensor": (lambda b: Setup(with_scalar(b)), set(), "silent"),
    "a whole file with the name of a shard": (
        lambda b: Setup(edited(b.target, b.path("whole-00002-of-00003"))),
        set(),
        "silent",
    ),
    "pre-tokenizer of tomorrow": (
        lambda b: Setup(edited(b.mtp, b.path("pre"), keys={"tokenizer.ggml.pre": "qwen9"})),
        {"unknown_pre_tokenizer"},
        "ends",
    ),
    "tokenizer of tomorrow": (
        lambda b: Setup(edited(b.mtp, b.path("tokenizer"), keys={"tokenizer.ggml.model": "bpe9"})),
        {"unknown_tokenizer"},
        "ends",
    ),
    "no tokens": (
        lambda b: Setup(edited(b.mtp, b.path("tokens"), keys={"tokenizer.ggml.tokens": None})),
        {"vocabulary_missing"},
        "ends",
    ),
    "few token types": (
        lambda b: Setup(
            edited(b.mtp, b.path("types"), keys={"tokenizer.ggml.token_type": Items(ValueType.INT32, [1, 1])})
        ),
        {"array_length"},
        "ends",
    ),
    "another width": (lambda b: Setup(b.changed(b.mtp, embedding_length=256)), {"width_disagrees"}, "ends"),
    "no merges": (
        lambda b: Setup(edited(b.mtp, b.path("merges"), keys={"tokenizer.ggml.merges": None})),
        {"merges_missing"},
        "ends",
    ),
    "architecture of tomorrow": (
        lambda b: Setup(edited(b.mtp, b.path("arch"), keys={"general.architecture": "llama9"})),
        {"unknown_architecture"},
        "ends",
    ),
    "array of another length": (
        lambda b: Setup(b.array(b.mtp, "attention.head_count_kv", 2)),
        {"array_length"},
        "ends",
    ),
    "drafter that begins and ends texts otherwise": (
        lambda b: Setup(
            b.parts.trunk,
            edited(
                b.parts.drafter,
                b.path("ends"),
                keys={"tokenizer.ggml.bos_token_id": 30, "tokenizer.ggml.eos_token_id": 31},
            ),
            MTP,
        ),
        set(),
        "drafts",
    ),
    "drafter with another tokenizer model": (
        lambda b: Setup(
            b.parts.trunk,
            edited(b.parts.drafter, b.path("spm"), keys={"tokenizer.ggml.model": "llama"}),
            MTP,
        ),
        set(),
        "drafts",
    ),
    "drafter with special tokens of other names": (
        lambda b: Setup(b.parts.trunk, b.tokens(b.parts.drafter, **{f"t{IM_END}": "<|eot|>"}), MTP),
        set(),
        "drafts",
    ),
    "draft-simple with special tokens of other names": (
        lambda b: Setup(b.target, b.tokens(b.small, **{f"t{IM_END}": "<|eot|>"}), SIMPLE),
        {"vocabulary_differs"},
        "silent",
    ),
    "draft-simple with another end that is not added": (
        lambda b: Setup(b.target, edited(b.small, b.path("eos"), keys={"tokenizer.ggml.eos_token_id": 30}), SIMPLE),
        set(),
        "drafts",
    ),
    "draft-eagle3 without a tokenizer": (
        lambda b: Setup(b.target, without_tokenizer(b, b.eagle3(0, 1, 2)), ("draft-eagle3",)),
        set(),
        "drafts",
    ),
    "donor": (lambda b: Setup(b.parts.trunk, b.parts.donor, MTP), {"donor_not_loadable"}, "ends"),
    "donor as model": (lambda b: Setup(b.parts.donor), {"not_a_model"}, "ends"),
    "drafter as model": (lambda b: Setup(b.parts.drafter), {"not_a_model"}, "ends"),
    "projector as model": (lambda b: Setup(projector(b)), {"not_a_model"}, "ends"),
    "web page as model": (lambda b: Setup(page(b)), {"invalid_gguf"}, "ends"),
    "no file": (lambda b: Setup(b.path("absent")), {"not_found"}, "ends"),
    "drafter without its norm": (
        lambda b: Setup(b.parts.trunk, b.without(b.parts.drafter, "output_norm.weight"), MTP),
        {"missing_drafter_tensor"},
        "ends",
    ),
    "drafter without a head": (lambda b: Setup(b.parts.trunk, b.small, MTP), {"no_head"}, "ends"),
    "drafter with a trunk": (lambda b: Setup(b.parts.trunk, b.mtp, MTP), set(), "drafts"),
    "draft-simple alone": (lambda b: Setup(b.target, types=SIMPLE), {"drafter_missing"}, "silent"),
    "draft-simple with a head": (lambda b: Setup(b.target, b.parts.drafter, SIMPLE), {"wrong_drafter"}, "ends"),
    "draft-simple with a donor": (lambda b: Setup(b.target, b.parts.donor, SIMPLE), {"wrong_drafter"}, "ends"),
    "draft-simple with another vocabulary": (
        lambda b: Setup(b.target, b.tokens(b.small, t77="77"), SIMPLE),
        {"vocabulary_differs"},
        "silent",
    ),
    "draft-simple with another bos": (
        lambda b: Setup(with_bos(b, b.target, END_OF_TEXT), with_bos(b, b.small, IM_END), SIMPLE),
        {"bos_differs"},
        "silent",
    ),
    "draft-simple with other added ids": (
        lambda b: Setup(with_bos(b, b.target, END_OF_TEXT), b.small, SIMPLE),
        {"add_bos_token_differs"},
        "silent",
    ),
    "draft-eagle3 alone": (lambda b: Setup(b.target, types=("draft-eagle3",)), {"drafter_missing"}, "silent"),
    "draft-eagle3 with a model": (lambda b: Setup(b.target, b.small, ("draft-eagle3",)), {"wrong_drafter"}, "silent"),
    "draft-eagle3": (lambda b: Setup(b.target, b.eagle3(0, 1, 2), ("draft-eagle3",)), set(), "drafts"),
    "draft-eagle3 for a deeper model": (
        lambda b: Setup(b.target, b.eagle3(0, 1, 3), ("draft-eagle3",)),
        {"target_layers_differ"},
        "ends",
    ),
    "draft-eagle3 for a wider model": (
        lambda b: Setup(b.target, b.eagle3(0, 1, 2, hidden=320), ("draft-eagle3",)),
        {"width_differs"},
        "ends",
    ),
    "draft-eagle3 without its layers": (
        lambda b: Setup(
            b.target, edited(b.eagle3(0, 1, 2), b.path("lost"), keys={"eagle3.target_layers": None}), ("draft-eagle3",)
        ),
        {"target_layers_missing"},
        "ends",
    ),
    "a drafter of draft-eagle3 for draft-mtp": (lambda b: Setup(b.target, b.eagle3(0, 1, 2), MTP), {"no_head"}, "ends"),
    "draft-dflash with a model": (lambda b: Setup(b.target, b.small, ("draft-dflash",)), {"wrong_drafter"}, "ends"),
    "draft-dspark with a model": (lambda b: Setup(b.target, b.small, ("draft-dspark",)), {"wrong_drafter"}, "ends"),
    "two types, one drafter": (
        lambda b: Setup(b.parts.trunk, b.parts.drafter, ("draft-mtp", "draft-simple")),
        {"drafters_conflict", "wrong_drafter"},
        "fails",
    ),
    "drafts of no tokens": (lambda b: Setup(b.mtp, types=MTP, n_max=0), {"no_drafts"}, "silent"),
    "drafts of no tokens, plain": (lambda b: Setup(b.target, b.small, SIMPLE, 0), {"no_drafts"}, "silent"),
    "drafter for nothing": (lambda b: Setup(b.target, b.small), set(), "silent"),
    "shards": (lambda b: Setup(b.shards()[0], types=MTP), set(), "drafts"),
    "second shard": (lambda b: Setup(b.shards()[1], types=MTP), {"not_first_shard"}, "ends"),
    "a shard missing": (lambda b: Setup(first_alone(b), types=MTP), {"missing_shards"}, "ends"),
    "a shard renamed": (lambda b: Setup(renamed(b), types=MTP), {"split_disagrees"}, "ends"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_preflight_says_is_what_happens(patched_server: Path, bench: Bench, tmp_path: Path, case: str) -> None:
    make, expected, then = CASES[case]
    setup = make(bench)
    assert codes(setup) >= expected if expected else codes(setup) == set()
    log = tmp_path / "server.log"
    assert outcome(patched_server, setup, log) == then, log.read_text(errors="replace")[-2000:]
    if not expected:
        assert then in ("silent", "drafts")


def test_a_drafter_of_another_width(
    patched_server: Path, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(bench.parts.trunk, bench.other_width(monkeypatch), MTP)
    assert codes(setup) == {"width_differs"}
    assert outcome(patched_server, setup, tmp_path / "server.log") == "ends"
    assert "row width must match" in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_clean_toys_draft(patched_server: Path, tmp_path: Path, arch: str) -> None:
    model = tmp_path / "model.gguf"
    write_architecture(arch, model)
    setup = Setup(model, types=MTP)
    assert preflight(setup.model, setup.drafter, setup.types) == ()
    assert outcome(patched_server, setup, tmp_path / "server.log") == "drafts"


@pytest.mark.parametrize("arch", SEVERAL_HEADS)
def test_long_drafts_end_with_a_chained_head(patched_server: Path, tmp_path: Path, arch: str) -> None:
    model = tmp_path / "model.gguf"
    write_architecture(arch, model, heads=2)
    (problem,) = preflight(model, None, MTP, 5)
    assert (problem.code, problem.severity) == ("n_max_clamped", "warning")
    flags = Setup(model, types=MTP, n_max=5).flags()
    with running_server(patched_server, model, *flags, log=tmp_path / "server.log") as server:
        answer = server.client.completion(PROMPT, N_PREDICT)
        assert 0 < answer.draft_n <= 2 * answer.step_n


def test_clean_pairs_draft(patched_server: Path, bench: Bench, tmp_path: Path) -> None:
    setups = [
        Setup(bench.target, bench.small, SIMPLE),
        Setup(bench.parts.trunk, bench.parts.drafter, MTP),
        Setup(bench.hybrid_parts.trunk, bench.hybrid_parts.drafter, MTP),
    ]
    for setup in setups:
        assert preflight(setup.model, setup.drafter, setup.types) == ()
        assert outcome(patched_server, setup, tmp_path / "server.log") == "drafts"


def test_a_difference_that_the_server_does_not_see(patched_server: Path, bench: Bench, tmp_path: Path) -> None:
    """No check on the MTP path (llama.cpp#3812): it drafts with tokens of other meaning, which is why we refuse."""
    setup = Setup(bench.parts.trunk, bench.tokens(bench.parts.drafter, t77="77"), MTP)
    assert codes(setup) == {"vocabulary_differs"}
    assert outcome(patched_server, setup, tmp_path / "server.log") == "drafts"


def test_a_drafter_of_another_kind_is_never_right(patched_server: Path, bench: Bench, tmp_path: Path) -> None:
    setup = Setup(bench.target, bench.eagle3(0, 1, 2), SIMPLE)
    assert codes(setup) == {"wrong_drafter"}
    with running_server(patched_server, setup.model, *setup.flags(), log=tmp_path / "server.log") as server:
        answer = server.client.completion(PROMPT, N_PREDICT)
        assert answer.draft_n > 0 and answer.accepted_n == 0
