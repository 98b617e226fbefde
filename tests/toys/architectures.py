"""A toy of every architecture that drafts with MTP blocks of its own (llama.cpp, LLM_GRAPH_TYPE_DECODER_MTP)."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.toys.bailingmoe3 import write_bailingmoe3
from tests.toys.deepseek4 import write_deepseek4
from tests.toys.glm4moe import write_mtp
from tests.toys.hy_v3 import write_hy_v3
from tests.toys.language import Knobs, Language
from tests.toys.latent import write_deepseek2, write_deepseek32, write_glm_dsa
from tests.toys.nemotron_h_moe import write_nemotron_h_moe
from tests.toys.qwen4exp import write_qwen4exp
from tests.toys.qwen35 import write_hybrid
from tests.toys.qwen_moe import write_qwen3next, write_qwen35moe
from tests.toys.sliding_window import write_cohere2moe, write_mimo2, write_step35

# Those that may have several MTP blocks.
SEVERAL_HEADS: Final[dict[str, Callable[[Path, Knobs, int], Language]]] = {
    "hy_v3": write_hy_v3,
    "mimo2": write_mimo2,
    "step35": write_step35,
}
ONE_HEAD: Final[dict[str, Callable[[Path, Knobs], Language]]] = {
    "bailingmoe3": write_bailingmoe3,
    "cohere2moe": write_cohere2moe,
    "deepseek2": write_deepseek2,
    "deepseek32": write_deepseek32,
    "deepseek4": write_deepseek4,
    "glm-dsa": write_glm_dsa,
    "glm4moe": write_mtp,
    "nemotron_h_moe": write_nemotron_h_moe,
    "qwen35": write_hybrid,
    "qwen35moe": write_qwen35moe,
    "qwen3next": write_qwen3next,
    "qwen4exp": write_qwen4exp,
}
ARCHITECTURES: Final = tuple(sorted([*ONE_HEAD, *SEVERAL_HEADS]))


def write_architecture(arch: str, path: Path, knobs: Knobs | None = None, heads: int = 1) -> Language:
    """Write the toy of an architecture with ``heads`` MTP blocks and return what it says.

    Raises ValueError for an unknown architecture, and for several blocks where llama.cpp allows one.
    """
    if arch in SEVERAL_HEADS:
        return SEVERAL_HEADS[arch](path, knobs or Knobs(), heads)
    if arch not in ONE_HEAD:
        raise ValueError(f"there is no toy of architecture {arch!r}, only of {', '.join(ARCHITECTURES)}")
    if heads != 1:
        raise ValueError(f"{arch} has one MTP block, asked for {heads}")
    return ONE_HEAD[arch](path, knobs or Knobs())
