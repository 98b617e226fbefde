import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import RepositoryView, Role
from orchestrator.store.candidates import candidates, nearest, quant_of, role_of, select

GB = 10**9


@pytest.mark.parametrize(
    "path, role",
    [
        ("gemma-4-E2B-it-UD-Q4_K_XL.gguf", Role.MODEL),
        ("BF16/Big-BF16-00001-of-00002.gguf", Role.MODEL),
        ("Qwen3.6-27B-MTP-Q4_K_M.gguf", Role.MODEL),
        ("MTP/mtp-gemma-4-E2B-it-Q8_0.gguf", Role.DRAFTER),
        ("mtp-glm-Q8_0.gguf", Role.DRAFTER),
        ("mtp.gguf", Role.DRAFTER),
        ("MTP/model.gguf", Role.DRAFTER),
        ("eagle3-llama-8b.gguf", Role.DRAFTER),
        ("Llama-3-EAGLE3-f16.gguf", Role.DRAFTER),
        ("dflash-x.gguf", Role.DRAFTER),
        ("dspark-x.gguf", Role.DRAFTER),
        ("Mistral-Small-draft-Q4_0.gguf", Role.DRAFTER),
        ("gemma-4-assistant-Q8_0.gguf", Role.DRAFTER),
        ("draftsman-7b-Q4_0.gguf", Role.MODEL),
        ("ornith-1.0-35b-MTP-head-v31-distill-Q8_0.gguf", Role.DONOR),
        ("smollm2-135m-mtp-head-Q8_0.gguf", Role.DONOR),
        ("x-nextn_layer.gguf", Role.DONOR),
        ("donor.gguf", Role.DONOR),
        ("mmproj-F16.gguf", Role.MMPROJ),
        ("gemma.mmproj-Q8_0.gguf", Role.MMPROJ),
        ("imatrix.dat", Role.IMATRIX),
        ("imatrix_unsloth.gguf", Role.IMATRIX),
        ("Model-7B.imatrix.gguf", Role.IMATRIX),
        ("Model-7B-imatrix-Q4_K_M.gguf", Role.MODEL),
        ("ggml-vocab-llama.gguf", Role.OTHER),
        ("style-lora-f16.gguf", Role.OTHER),
        ("README.md", Role.OTHER),
        ("model.safetensors", Role.OTHER),
    ],
)
def test_roles(path: str, role: Role) -> None:
    assert role_of(path) is role


@pytest.mark.parametrize(
    "path, quant",
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("m.q4_k_m.gguf", "Q4_K_M"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-Q4_K_XL.gguf", "Q4_K_XL"),
        ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("m-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("m.i1-Q6_K.gguf", "Q6_K"),
        ("m-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("m-MXFP4.gguf", "MXFP4"),
        ("m-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("m-bf16.gguf", "BF16"),
        ("m-F16.gguf", "F16"),
        ("m.fp16.GGUF", "FP16"),
        ("m-Q8_0-00003-of-00010.gguf", "Q8_0"),
        ("UD-Q3_K_XL/big-00001-of-00004.gguf", "UD-Q3_K_XL"),
        ("Q8_0/m-Q4_K_S.gguf", "Q4_K_S"),
        ("m_Q5_K_S_v2.gguf", "Q5_K_S"),
        ("Q4-team-model-F32.gguf", "F32"),
        ("qwen3-8b.gguf", None),
        ("FAQ8_0.gguf", None),
        ("imatrix.dat", None),
    ],
)
def test_quants(path: str, quant: str | None) -> None:
    assert quant_of(path) == quant


def repository(sizes: dict[str, int]) -> RepositoryView:
    return RepositoryView(repository="acme/toy", commit="c" * 40, candidates=candidates(sizes))


GEMMA = repository(
    {
        "gemma-UD-Q4_K_XL.gguf": 3 * GB,
        "gemma-Q4_K_M.gguf": 2 * GB,
        "gemma-Q8_0.gguf": 5 * GB,
        "MTP/mtp-gemma-Q8_0.gguf": GB // 10,
        "mmproj-F16.gguf": GB,
        "imatrix.dat": 1000,
        "README.md": 10,
        "config.json": 10,
    }
)
SHARDS = {f"Q4_K_M/big-Q4_K_M-0000{i}-of-00003.gguf": i * GB for i in (1, 2, 3)}


def refused(found: RepositoryView, wanted: str | None = None, role: Role = Role.MODEL) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        select(found, wanted, role)
    return caught.value


def test_a_repository_is_listed_by_role() -> None:
    assert [(c.file, c.role) for c in GEMMA.candidates] == [
        ("gemma-Q4_K_M.gguf", Role.MODEL),
        ("gemma-Q8_0.gguf", Role.MODEL),
        ("gemma-UD-Q4_K_XL.gguf", Role.MODEL),
        ("MTP/mtp-gemma-Q8_0.gguf", Role.DRAFTER),
        ("mmproj-F16.gguf", Role.MMPROJ),
        ("imatrix.dat", Role.IMATRIX),
    ]


def test_shards_are_one_candidate() -> None:
    [big] = repository(SHARDS).candidates
    assert (big.file, big.files, big.size_bytes, big.quant) == (min(SHARDS), tuple(SHARDS), 6 * GB, "Q4_K_M")


def test_a_shard_that_is_missing_is_still_named() -> None:
    [big] = repository({max(SHARDS): GB}).candidates
    assert (big.file, big.files, big.size_bytes) == (min(SHARDS), tuple(SHARDS), GB)


@pytest.mark.parametrize(
    "wanted, role, file",
    [
        ("gemma-Q8_0.gguf", Role.MODEL, "gemma-Q8_0.gguf"),
        ("MTP/mtp-gemma-Q8_0.gguf", Role.MODEL, "MTP/mtp-gemma-Q8_0.gguf"),
        ("Q8_0", Role.MODEL, "gemma-Q8_0.gguf"),
        ("Q8_0", Role.DRAFTER, "MTP/mtp-gemma-Q8_0.gguf"),
        ("q4_k_m", Role.MODEL, "gemma-Q4_K_M.gguf"),
        ("Q4_K_XL", Role.MODEL, "gemma-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", Role.MODEL, "gemma-UD-Q4_K_XL.gguf"),
        (None, Role.DRAFTER, "MTP/mtp-gemma-Q8_0.gguf"),
        ("fp16", Role.MMPROJ, "mmproj-F16.gguf"),
    ],
)
def test_what_is_meant(wanted: str | None, role: Role, file: str) -> None:
    assert select(GEMMA, wanted, role).file == file


def test_any_shard_means_all() -> None:
    assert select(repository(SHARDS), max(SHARDS)).files == tuple(SHARDS)


def test_nothing_is_guessed_between_two() -> None:
    error = refused(GEMMA)
    assert error.code is Code.SOURCE_AMBIGUOUS
    assert "gemma-Q4_K_M.gguf (model, 2.00 GB)" in error.message and "gemma-UD-Q4_K_XL.gguf" in error.message
    assert "mtp" not in error.message and error.hint
    assert [c["file"] for c in error.details["candidates"]] == [c.file for c in GEMMA.candidates[:3]]
    assert error.details["candidates"][0]["role"] == "model"


def test_a_quant_with_and_without_the_dynamic_mark_is_not_guessed() -> None:
    both = repository({"m-Q4_K_XL.gguf": GB, "m-UD-Q4_K_XL.gguf": GB, "n-Q8_0.gguf": GB})
    assert [c["quant"] for c in refused(both, "Q4_K_XL").details["candidates"]] == ["Q4_K_XL", "UD-Q4_K_XL"]
    assert select(both, "UD-Q4_K_XL").file == "m-UD-Q4_K_XL.gguf"


def test_shards_and_a_single_file_of_one_quant_are_not_guessed() -> None:
    error = refused(repository(SHARDS | {"big-Q4_K_M.gguf": GB}), "Q4_K_M")
    assert error.code is Code.SOURCE_AMBIGUOUS and "6.00 GB, 3 shards" in error.message


@pytest.mark.parametrize(
    "wanted, role, words, hint",
    [
        ("Q5_K_M", Role.MODEL, "neither a file nor a quant 'Q5_K_M'; it has gemma-Q4_K_M.gguf (model, 2.00 GB)", None),
        ("mtp-gemma-Q8_0.gguf", Role.MODEL, "neither a file nor a quant", "MTP/mtp-gemma-Q8_0.gguf"),
        ("Gemma-Q8_0.gguf", Role.MODEL, "neither a file nor a quant", "gemma-Q8_0.gguf"),
        (None, Role.DONOR, "no file of the role donor; it has gemma", None),
    ],
)
def test_what_is_not_there_says_what_is(wanted: str | None, role: Role, words: str, hint: str | None) -> None:
    error = refused(GEMMA, wanted, role)
    assert error.code is Code.SOURCE_NOT_FOUND and words in error.message
    assert hint is None or hint in (error.hint or "")


def test_a_repository_without_models_says_so() -> None:
    assert "it has no GGUF file" in refused(repository({"README.md": 1, "model.safetensors": 5})).message


def test_a_long_list_is_cut() -> None:
    many = repository({f"m{i:02}-Q4_0.gguf": GB for i in range(30)})
    error = refused(many)
    assert error.message.endswith("and 10 more") and len(error.details["candidates"]) == 30


def test_nearest_names() -> None:
    assert nearest("mtp-x.gguf", ["MTP/mtp-x.gguf", "x.gguf"])[0] == "MTP/mtp-x.gguf"
    assert nearest("mian", ["main", "dev"]) == ["main"]
    assert nearest("zzz", ["main"]) == []
