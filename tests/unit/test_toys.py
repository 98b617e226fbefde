import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from tests import REPOSITORY
from tests.toys import (
    Knobs,
    Language,
    split_mtp,
    vocabulary,
    write_hybrid,
    write_mtp,
    write_pair,
    write_replay,
)
from tests.toys.language import ALPHABET

MAKERS = [write_mtp, write_hybrid, write_replay]
MTP_MAKERS = [write_mtp, write_hybrid]
Maker = Callable[[Path, Knobs], Language]


def tensor_names(path: Path) -> set[str]:
    return {tensor.name for tensor in GGUFReader(path).tensors}


def tensors(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}


def number(path: Path, key: str) -> int:
    return int(GGUFReader(path).fields[key].contents())


@pytest.mark.parametrize("make", MAKERS)
def test_maker_is_quick_and_deterministic(make: Maker, tmp_path: Path) -> None:
    started = time.perf_counter()
    make(tmp_path / "a.gguf", Knobs(seed=7, trunk=0.3))
    assert time.perf_counter() - started < 1.0
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
    outward = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")
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
    blocks = number(whole, f"{arch}.block_count")
    head = f"blk.{blocks - 1}."
    files = split_mtp(whole, tmp_path)

    head_names = {name for name in tensor_names(whole) if name.startswith(head)}
    assert f"{head}nextn.eh_proj.weight" in head_names
    assert tensor_names(files.donor) == head_names
    assert tensor_names(files.trunk) == tensor_names(whole) - head_names
    assert tensor_names(files.drafter) == head_names | {
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
    }
    assert number(files.trunk, f"{arch}.block_count") == blocks - 1
    assert f"{arch}.nextn_predict_layers" not in GGUFReader(files.trunk).fields
    assert number(files.donor, f"{arch}.block_count") == blocks
    assert number(files.donor, f"{arch}.nextn_predict_layers") == 1


def test_split_refuses_a_model_without_an_mtp_block(tmp_path: Path) -> None:
    write_replay(tmp_path / "replay.gguf", Knobs())
    with pytest.raises(ValueError, match=r"has no jamba\.nextn_predict_layers"):
        split_mtp(tmp_path / "replay.gguf", tmp_path)


@pytest.mark.parametrize(
    "arguments, written",
    [
        (["mtp", "m.gguf", "--noise", "0.2", "--stop-after", "."], ["m.gguf"]),
        (["hybrid", "h.gguf"], ["h.gguf"]),
        (["replay", "r.gguf"], ["r.gguf"]),
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
