"""What decides a build: pin, patch series, profile, variant; and the key that says whether two builds are the same."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass, field, replace

from llamacpp import gpu, toolchain
from llamacpp.pin import Pin, PinError, Series, load_pin, load_series
from llamacpp.variants import ARCHITECTURES_OPTION, Variant, load_variant

KEY_SCHEMA = 1
# No option lets the server or its build reach a network: no embedded UI to download, no TLS client.
COMMON_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    # Unity files name their members by absolute path otherwise, and no two builds would share them in ccache.
    "CMAKE_UNITY_BUILD_RELOCATABLE": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
PROFILES = {
    "native": {"GGML_NATIVE": "ON"},
    "portable": {"GGML_NATIVE": "OFF", "GGML_BACKEND_DL": "ON", "GGML_CPU_ALL_VARIANTS": "ON"},
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a build gives; two recipes with one key give the same server."""

    pin: Pin
    series: Series
    profile: str
    variant: Variant = field(default_factory=lambda: load_variant("cpu"))

    @property
    def stamp(self) -> str:
        return self.series.stamp(self.pin)

    @property
    def options(self) -> dict[str, str]:
        stamps = {"LLAMA_BUILD_NUMBER": str(self.pin.build_number), "LLAMA_BUILD_COMMIT": self.stamp}
        return COMMON_OPTIONS | PROFILES[self.profile] | self.variant.cmake_options() | stamps

    @property
    def title(self) -> str:
        kinds = [self.profile] if self.variant.name == "cpu" else [self.profile, self.variant.name]
        return ", ".join([*kinds, *self.variant.architectures])

    def describe(self) -> dict[str, object]:
        """The content of build.json without the key: pin, patches, options, compiler, processor if it matters."""
        accelerator = self.variant.accelerator
        of_gpu = {}
        if accelerator != "cpu":
            of_gpu = {
                "variant": self.variant.name,
                "architectures": list(self.variant.architectures),
                "gpu_compiler": gpu.compiler_identity(accelerator),
            }
        return of_gpu | {
            "schema": KEY_SCHEMA,
            "tag": self.pin.tag,
            "commit": self.pin.commit,
            "stamp": self.stamp,
            "tree_sha256": self.pin.tree_sha256,
            "patches_sha256": self.series.digest,
            "patches": [patch.name for patch in self.series.patches],
            "profile": self.profile,
            "options": self.options,
            "compiler": toolchain.compiler_identity(),
            "processor": toolchain.processor_identity() if self.profile == "native" else "any",
        }


def recipe_key(description: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def chosen_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe that the command line names. Raises PinError."""
    variant = load_variant(options.variant)
    for assignment in options.option:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise PinError(f"--option {assignment!r}, expected NAME=VALUE such as GGML_CUDA_FA_QUANTS=all")
        if name in ARCHITECTURES_OPTION.values():
            raise PinError(
                f"--option {assignment!r}: --variant names the architectures, such as rocm-gfx1030 or cuda-86-real"
            )
        variant = replace(variant, options=variant.options | {name: value})
    return Recipe(load_pin(), load_series(options.patches or variant.patches), options.profile, variant)
