import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from tests import REPOSITORY
from tests.toys import (
    ARCHITECTURES,
    SEVERAL_HEADS,
    Knobs,
    Language,
    split_mtp,
    vocabulary,
    write_architecture,
    write_pair,
    write_replay,
)
from tests.toys.language import ALPHABET

pytestmark = pytest.mark.integration

Maker = Callable[[Path, Knobs], Language]
MTP_MAKERS = [pytest.param(partial(write_architecture, arch), id=arch) for arch in ARCHITECTURES]
MAKERS = [*MTP_MAKERS, pytest.param(write_replay, id="jamba")]
# Those whose MTP block may have no output matrix.
MUTE_HEADS = ["bailingmoe3", "nemotron_h_moe", "qwen4exp"]


def tensor_names(path: Path) -> set[str]:
    return {tensor.name for tensor in GGUFReader(path).tensors}


def tensors(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}


def value(path: Path, key: str) -> Any:
    return GGUFReader(path).fields[key].contents()


@pytest.mark.parametrize("make", MAKERS)
def test_maker_is_quick_and_deterministic(make: Maker, tmp_path: Path) -> None:
    started = time.process_time()
    make(tmp_path / "a.gguf", Knobs(seed=7, trunk=0.3))
    assert time.process_time() - started < 1.0
    make(tmp_path / "b.gguf", Knobs(seed=7, trunk=0.3))
    make(tmp_path / "c.gguf", Knobs(seed=8, trunk=0.3))
    first, second, other = ((tmp_path / f"{name}.gguf").read_bytes() for name in "abc")
    assert first == second
    assert first != other


def test_rank_one_walks_the_whole_alphabet_as_valid_text() -> None:
    said = Language(Knobs()).greedy(ord("A"), len(ALPHABET) + 1)
    assert set(said) >= set(ALPHABET)
    assert said[-1] == ord("A")
    assert "é" in vocabulary.detokenize(said).decode()


def test_ranking_lists_every_token_once_and_control_tokens_last() -> None:
    ranking = Language(Knobs(follow={ord("a"): (vocabulary.END_OF_TEXT, ord("b"))})).ranking
    assert (np.sort(ranking, axis=1) == np.arange(vocabulary.SIZE)).all()
    assert set(ranking[ord("z"), -len(vocabulary.CONTROL) :]) == set(vocabulary.CONTROL)
    assert list(ranking[ord("a"), :2]) == [vocabulary.END_OF_TEXT, ord("b")]


def test_logits_fall_by_the_gap_from_rank_to_rank() -> None:
    language = Language(Knobs(gap=0.7))
    logits = np.take_along_axis(language.target_logits, language.ranking, axis=1)
    np.testing.assert_allclose(np.diff(logits[:, :24], axis=1), -0.7, rtol=1e-5)
    assert (np.diff(logits, axis=1) < 0).all()


def test_tied_ranks_have_one_logit() -> None:
    language = Language(Knobs(tied_ranks=3))
    logits = np.take_along_axis(language.target_logits, language.ranking, axis=1)
    assert (logits[:, :3] == logits[:, :1]).all()
    assert (logits[:, 3] < logits[:, 2]).all()


def test_drafter_drafts_the_rank_that_was_asked_for() -> None:
    language = Language(Knobs(draft_rank=7, drafts={ord("q"): vocabulary.END_OF_TEXT}))
    best = np.argmax(language.drafter_logits, axis=1)
    assert (best == language.drafted).all()
    ranks = {language.rank(token, int(best[token])) for token in range(vocabulary.SIZE) if token != ord("q")}
    assert ranks == {7}
    assert best[ord("q")] == vocabulary.END_OF_TEXT


def test_drafter_is_less_sure_of_the_same_draft_where_asked() -> None:
    sure, unsure = Language(Knobs(draft_rank=2)), Language(Knobs(draft_rank=2, unsure=(ord("a"),)))
    changed = np.flatnonzero((sure.drafter_logits != unsure.drafter_logits).any(axis=1))
    assert list(changed) == [ord("a")]
    np.testing.assert_allclose(unsure.drafter_logits[ord("a")] * 5, sure.drafter_logits[ord("a")], rtol=1e-5)


def test_noise_is_the_share_of_drafts_that_miss() -> None:
    language = Language(Knobs(noise=0.25, miss_rank=9))
    ranks = [language.rank(token, int(language.drafted[token])) for token in ALPHABET]
    assert set(ranks) == {1, 9}
    assert ranks.count(9) / len(ranks) == pytest.approx(0.25, abs=1 / len(ranks))


@pytest.mark.parametrize("knobs", [{"draft_rank": 0}, {"miss_rank": 300}, {"noise": 1.5}, {"trunk": -1.0}])
def test_a_knob_out_of_range_is_named_with_its_value(knobs: dict[str, float]) -> None:
    name, value = next(iter(knobs.items()))
    with pytest.raises(ValueError, match=rf"{name} is {value}, expected"):
        Knobs(**knobs)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", MAKERS)
def test_without_trunk_nothing_is_added_to_the_residual_stream(make: Maker, tmp_path: Path) -> None:
    sublayer_ends = ("attn_output", "attn_output_b", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
    outward = tuple(f".{name}.weight" for name in sublayer_ends)
    make(tmp_path / "flat.gguf", Knobs())
    make(tmp_path / "deep.gguf", Knobs(trunk=0.3))
    flat, deep = tensors(tmp_path / "flat.gguf"), tensors(tmp_path / "deep.gguf")
    names = [name for name in flat if name.endswith(outward)]
    assert names
    assert not any(flat[name].any() for name in names)
    assert all(deep[name].any() for name in names if name.startswith("blk.0."))


def test_a_pair_shares_vocabulary_and_says_what_the_language_says(tmp_path: Path) -> None:
    target, drafter = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
    language = write_pair(target, drafter, Knobs(draft_rank=3))
    for path, logits in ((target, language.target_logits), (drafter, language.drafter_logits)):
        made = tensors(path)
        np.testing.assert_allclose(made["token_embd.weight"] @ made["output.weight"].T, logits, atol=1e-4)
    fields = [GGUFReader(path).fields["tokenizer.ggml.tokens"].contents() for path in (target, drafter)]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("make", MTP_MAKERS)
def test_split_gives_trunk_drafter_and_donor(make: Maker, tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    make(whole, Knobs())
    arch = str(GGUFReader(whole).fields["general.architecture"].contents())
    blocks = value(whole, f"{arch}.block_count")
    head = f"blk.{blocks - 1}."
    files = split_mtp(whole, tmp_path)

    head_names = {name for name in tensor_names(whole) if name.startswith(head)}
    assert f"{head}nextn.eh_proj.weight" in head_names
    assert tensor_names(files.donor) == head_names
    assert tensor_names(files.trunk) == tensor_names(whole) - head_names
    assert tensor_names(files.drafter) == head_names | {
        name for name in tensor_names(whole) if not name.startswith("blk.")
    }
    assert value(files.trunk, f"{arch}.block_count") == blocks - 1
    assert f"{arch}.nextn_predict_layers" not in GGUFReader(files.trunk).fields
    assert value(files.donor, f"{arch}.block_count") == blocks
    assert value(files.donor, f"{arch}.nextn_predict_layers") == 1


def test_split_takes_every_head_and_ends_the_arrays_of_a_trunk_with_its_last_block(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_architecture("step35", whole, heads=2)
    files = split_mtp(whole, tmp_path)
    assert {name.split(".")[1] for name in tensor_names(files.donor)} == {"2", "3"}
    assert {name.split(".")[1] for name in tensor_names(files.trunk) if name.startswith("blk.")} == {"0", "1"}
    for key in ("attention.head_count", "attention.sliding_window_pattern", "swiglu_clamp_exp"):
        assert value(files.trunk, f"step35.{key}") == value(whole, f"step35.{key}")[:2]
        assert value(files.donor, f"step35.{key}") == value(whole, f"step35.{key}")


def test_split_leaves_an_array_of_the_trunk_alone_as_it_is(tmp_path: Path) -> None:
    write_architecture("glm-dsa", tmp_path / "whole.gguf")
    files = split_mtp(tmp_path / "whole.gguf", tmp_path)
    assert value(files.trunk, "glm-dsa.attention.indexer.types") == [1, 0]


def test_split_refuses_a_model_without_an_mtp_block(tmp_path: Path) -> None:
    write_replay(tmp_path / "replay.gguf", Knobs())
    with pytest.raises(ValueError, match=r"has no jamba\.nextn_predict_layers"):
        split_mtp(tmp_path / "replay.gguf", tmp_path)


def test_every_architecture_that_drafts_with_blocks_of_its_own_has_a_toy() -> None:
    assert set(ARCHITECTURES) == {
        *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "hy_v3"),
        *("mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "step35"),
    }
    assert set(SEVERAL_HEADS) == {"hy_v3", "mimo2", "step35"}


@pytest.mark.parametrize("arch", SEVERAL_HEADS)
def test_each_head_is_a_block_announced_by_the_header(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    write_architecture(arch, path, heads=3)
    heads = [name.split(".")[1] for name in tensor_names(path) if name.endswith("nextn.eh_proj.weight")]
    assert sorted(heads) == ["2", "3", "4"]
    assert (value(path, f"{arch}.nextn_predict_layers"), value(path, f"{arch}.block_count")) == (3, 5)


@pytest.mark.parametrize(
    "arch, heads, complaint",
    [("glm4moe", 2, "glm4moe has one MTP block, asked for 2"), ("jamba", 1, "no toy of architecture 'jamba'")],
)
def test_a_toy_that_cannot_be_made_is_refused(arch: str, heads: int, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        write_architecture(arch, tmp_path / "toy.gguf", heads=heads)


@pytest.mark.parametrize("arch", MUTE_HEADS)
@pytest.mark.parametrize("knobs", [Knobs(), Knobs(draft_rank=7), Knobs(noise=0.4)])
def test_a_head_without_output_matrix_drafts_through_that_of_the_model(arch: str, knobs: Knobs, tmp_path: Path) -> None:
    language = write_architecture(arch, tmp_path / "toy.gguf", knobs)
    made = tensors(tmp_path / "toy.gguf")
    eh_proj = next(data for name, data in made.items() if name.endswith("nextn.eh_proj.weight"))
    states = made["token_embd.weight"] @ eh_proj[:, : eh_proj.shape[0]].T
    np.testing.assert_allclose(states.sum(axis=1), 0.0, atol=1e-3)
    best = np.argmax(states @ made["output.weight"].T, axis=1)
    assert (best == language.drafted).all()


def test_a_head_without_output_matrix_drafts_a_control_token_only_if_the_target_says_it(tmp_path: Path) -> None:
    drafts = {ord("q"): vocabulary.END_OF_TEXT}
    write_architecture("qwen4exp", tmp_path / "a.gguf", Knobs(drafts=drafts, follow={ord("z"): (258,)}))
    with pytest.raises(ValueError, match="the target's output, which cannot say token 258"):
        write_architecture("qwen4exp", tmp_path / "b.gguf", Knobs(drafts=drafts))


@pytest.mark.parametrize(
    "arguments, written",
    [
        (["mtp", "m.gguf", "--noise", "0.2", "--stop-after", "."], ["m.gguf"]),
        (["hybrid", "h.gguf"], ["h.gguf"]),
        (["replay", "r.gguf"], ["r.gguf"]),
        (["arch", "mimo2", "a.gguf", "--heads", "2"], ["a.gguf"]),
        (["pair", "t.gguf", "d.gguf", "--draft-rank", "2"], ["t.gguf", "d.gguf"]),
    ],
)
def test_command_line_writes_what_it_names(arguments: list[str], written: list[str], tmp_path: Path) -> None:
    paths = [str(tmp_path / part) if part.endswith(".gguf") else part for part in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "tests.toys", *paths],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [Path(line.split()[0]).name for line in done.stdout.splitlines()] == written
    assert all(GGUFReader(tmp_path / name).tensors for name in written)
