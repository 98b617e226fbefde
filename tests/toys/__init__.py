"""Makers of tiny GGUF models whose every choice, and every drafted token, is known in advance."""

from tests.toys.architectures import ARCHITECTURES, SEVERAL_HEADS, write_architecture
from tests.toys.glm4moe import write_mtp
from tests.toys.jamba import write_replay
from tests.toys.language import Knobs, Language
from tests.toys.llama import write_pair
from tests.toys.qwen35 import write_hybrid
from tests.toys.split import SplitFiles, split_mtp

__all__ = [
    "ARCHITECTURES",
    "SEVERAL_HEADS",
    "Knobs",
    "Language",
    "SplitFiles",
    "split_mtp",
    "write_architecture",
    "write_hybrid",
    "write_mtp",
    "write_pair",
    "write_replay",
]
