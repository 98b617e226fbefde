"""Memory by arithmetic; tests/integration/gguf/test_memory.py holds it against what llama-server reports."""

from typing import Any

import pytest

from orchestrator.gguf.contents import contents_of_headers
from orchestrator.gguf.memory import Setup, estimate_memory
from orchestrator.gguf.reader import read_header
from orchestrator.gguf.types import TensorType, ValueType
from orchestrator.schemas.gguf import MemoryEstimate
from tests.support.gguf_bytes import Items, gguf
from tests.unit.gguf import made
from tests.unit.gguf.test_reader import Bytes

CTX = 4096


def estimate(arch: str, blocks: int, setup: Setup | None = None, heads: int = 0, **keys: Any) -> MemoryEstimate:
    tensors = made.around(arch) | made.trunk_of(arch, blocks) | (made.head_of(arch, blocks, heads) if heads else {})
    content = gguf(made.keys(arch, blocks, heads, **keys), tensors)
    seen = estimate_memory(contents_of_headers([read_header(Bytes(content))]), setup)
    assert seen is not None
    parts = (seen.weights_bytes, seen.head_bytes, seen.kv_bytes, seen.head_kv_bytes)
    assert seen.total_bytes == sum(parts) + seen.recurrent_bytes + seen.compute_bytes
    return seen


def bools(*values: bool) -> Items:
    return Items(ValueType.BOOL, values)


def numbers(*values: int) -> Items:
    return Items(ValueType.INT32, values)


def test_keys_and_values_of_plain_attention() -> None:
    seen = estimate("llama", 3, attention__key_length=64, attention__value_length=32)
    assert seen.kv_bytes == 3 * CTX * 2 * (64 + 32) * 2
    assert (seen.head_kv_bytes, seen.recurrent_bytes, seen.ctx_tokens, seen.sequences) == (0, 0, CTX, 1)
    # Width by head count where the file does not say, heads of queries where it says none of keys.
    assert estimate("llama", 3).kv_bytes == 3 * CTX * 2 * (4 + 4) * 2
    assert estimate("llama", 3, attention__head_count_kv=1).kv_bytes == 3 * CTX * (4 + 4) * 2


def test_weights_are_the_tensors() -> None:
    tensors = made.around("llama") | made.trunk_of("llama", 3)
    assert estimate("llama", 3).weights_bytes == sum(type_.size_of(shape) for shape, type_ in tensors.values())


def test_heads_by_block() -> None:
    seen = estimate(
        "llama", 3, attention__head_count_kv=numbers(1, 0, 2), attention__key_length=8, attention__value_length=8
    )
    assert seen.kv_bytes == 3 * CTX * (8 + 8) * 2


@pytest.mark.parametrize(("ctx", "cells"), [(1, 256), (256, 256), (257, 512), (131072, 131072)])
def test_cells_come_in_rows_of_256(ctx: int, cells: int) -> None:
    assert estimate("llama", 1, Setup(ctx), attention__key_length=8, attention__value_length=8).kv_bytes == cells * 64


def test_quantised_caches() -> None:
    setup = Setup(CTX, key_type=TensorType.Q8_0, value_type=TensorType.Q4_0)
    seen = estimate("llama", 1, setup, attention__key_length=64, attention__value_length=64, attention__head_count_kv=1)
    assert seen.kv_bytes == CTX * (2 * 34 + 2 * 18)


def test_latent_attention_keeps_one_row_for_both() -> None:
    mla: dict[str, Any] = {"attention__key_length_mla": 24, "attention__value_length_mla": 16}
    seen = estimate(
        "deepseek2", 2, attention__head_count_kv=1, attention__key_length=48, attention__value_length=32, **mla
    )
    assert seen.kv_bytes == 2 * CTX * 48 * 2


ROW = 2 * (4 + 4) * 2


@pytest.mark.parametrize(
    ("arch", "windows", "keys"),
    [
        ("gemma3", 5, {}),
        ("gemma3", 3, {"attention__sliding_window_pattern": 2}),
        ("gemma3", 1, {"attention__sliding_window_pattern": bools(True, False, False, False, False, False)}),
        ("cohere2moe", 4, {}),
        ("gpt-oss", 3, {}),
        ("mimo2", 2, {"attention__sliding_window_pattern": bools(False, True, True)}),
        ("mimo2", 0, {}),
        ("qwen2", 0, {}),
    ],
)
def test_sliding_windows(arch: str, windows: int, keys: dict[str, Any]) -> None:
    seen = estimate(arch, 6, attention__sliding_window=128, **keys)
    assert seen.kv_bytes == ROW * (windows * 768 + (6 - windows) * CTX)


def test_a_window_of_several_sequences() -> None:
    of: dict[str, Any] = {"attention__sliding_window": 1024, "attention__sliding_window_pattern": bools(True)}
    assert estimate("mimo2", 1, Setup(8192, 4, unified=True), **of).kv_bytes == ROW * (4 * 1024 + 512)
    assert estimate("mimo2", 1, Setup(8192, 4), **of).kv_bytes == ROW * 4 * (1024 + 512)
    # No more than the context of a sequence.
    assert estimate("mimo2", 1, Setup(2048, 4), **of).kv_bytes == ROW * 2048


def test_the_head_has_a_context_of_its_own() -> None:
    seen = estimate("glm4moe", 2, heads=1)
    assert (seen.kv_bytes, seen.head_kv_bytes) == (2 * CTX * ROW, CTX * ROW)
    tensors = made.around("glm4moe") | made.head_of("glm4moe", 2)
    content = gguf(made.keys("glm4moe", 2, 1), tensors)
    drafter = estimate_memory(contents_of_headers([read_header(Bytes(content))]))
    assert drafter is not None
    assert (drafter.kv_bytes, drafter.head_kv_bytes) == (0, CTX * ROW)


SSM: dict[str, Any] = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 32, "ssm__group_count": 2}
STATE = (3 * (128 + 2 * 2 * 32) + 32 * 128) * 4


@pytest.mark.parametrize(
    ("arch", "recurrent", "attention", "keys"),
    [
        ("qwen35", 6, 2, {}),
        ("qwen35", 4, 4, {"full_attention_interval": 2}),
        ("qwen35", 1, 7, {"attention__recurrent_layers": numbers(1, 0, 0, 0, 0, 0, 0, 0)}),
        ("jamba", 6, 2, {"attention__head_count_kv": numbers(0, 0, 0, 2, 0, 0, 0, 2)}),
        ("falcon-h1", 8, 8, {}),
        ("mamba2", 8, 0, {}),
    ],
)
def test_recurrent_blocks(arch: str, recurrent: int, attention: int, keys: dict[str, Any]) -> None:
    seen = estimate(arch, 8, **SSM, **keys)
    assert seen.recurrent_bytes == recurrent * STATE
    assert seen.kv_bytes == attention * CTX * ROW


def test_state_grows_with_sequences_and_with_what_verification_may_take_back() -> None:
    setup = Setup(CTX, sequences=2, draft_tokens=3)
    assert estimate("qwen35", 4, setup, **SSM).recurrent_bytes == 3 * STATE * 2 * (1 + 3)
    assert estimate("qwen3next", 4, setup, **SSM).recurrent_bytes == 3 * STATE * 2


def test_other_states() -> None:
    assert estimate("rwkv7", 2, wkv__head_size=64).recurrent_bytes == 2 * (2 + 64) * 8 * 4
    lfm = estimate("lfm2", 2, shortconv__l_cache=3, attention__head_count_kv=numbers(0, 2))
    assert lfm.recurrent_bytes == 2 * 8 * 4 and lfm.kv_bytes == CTX * ROW
    kda = estimate("kimi-linear", 2, kda__head_dim=16, ssm__conv_kernel=4, attention__head_count_kv=numbers(0, 1))
    assert kda.recurrent_bytes == (3 * 3 * 2 * 16 + 16 * 16 * 2) * 4


def test_compute_grows_with_context_and_width() -> None:
    small, large = estimate("llama", 1, Setup(1024)), estimate("llama", 1, Setup(2048))
    assert large.compute_bytes - small.compute_bytes == 1024 * 2 * 512
    assert estimate("llama", 1, feed_forward_length=1024).compute_bytes > estimate("llama", 1).compute_bytes


@pytest.mark.parametrize("keys", [{}, {"general.architecture": "llama"}, {"general.architecture": "clip"}])
def test_nothing_is_estimated_for_what_is_no_model(keys: dict[str, Any]) -> None:
    content = gguf(keys, {"token_embd.weight": ((8, 4), TensorType.F32)})
    assert estimate_memory(contents_of_headers([read_header(Bytes(content))])) is None


@pytest.mark.parametrize(
    "keys",
    [
        {
            "attention__head_count": (ValueType.UINT64, 2**64 - 1),
            "attention__key_length": (ValueType.UINT64, 2**64 - 1),
        },
        {"attention__head_count": (ValueType.INT32, -1), "attention__key_length": (ValueType.INT64, -(2**63))},
        {"attention__head_count": numbers(-5), "feed_forward_length": numbers()},
        {"attention__head_count": "many", "attention__sliding_window_pattern": (ValueType.UINT8, 0)},
        {"attention__head_count": 0, "attention__sliding_window": 2**32 - 1},
        {"nextn_predict_layers": (ValueType.INT32, -7)},
    ],
)
def test_absurd_values_give_a_number_all_the_same(keys: dict[str, Any]) -> None:
    for arch in ("llama", "gemma3", "qwen35", "deepseek4", "qwen4exp"):
        assert estimate(arch, 2, **keys).total_bytes >= 0
