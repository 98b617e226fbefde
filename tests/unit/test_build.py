"""What decides a build, what is read back from it, and what is said when a tool is missing. Nothing is compiled."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llamacpp import gpu, toolchain
from llamacpp.build import Built, export
from llamacpp.pin import PinError, load_pin, load_series
from llamacpp.recipe import PROFILES, Recipe, chosen_recipe, recipe_key
from llamacpp.variants import load_variant
from tests import REPOSITORY

UNPATCHED = Recipe(load_pin(), load_series("none"), "native")


def key(recipe: Recipe) -> str:
    return recipe_key(recipe.describe())


def test_the_key_follows_what_the_build_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.patch").write_text("1")
    (tmp_path / "series").write_text("a.patch\n")
    patched = replace(UNPATCHED, series=load_series("series", tmp_path))
    (tmp_path / "a.patch").write_text("2")
    changed = replace(UNPATCHED, series=load_series("series", tmp_path))
    portable = replace(UNPATCHED, profile="portable")
    other_tree = replace(UNPATCHED, pin=replace(UNPATCHED.pin, tree_sha256="0" * 64))
    keys = [key(recipe) for recipe in (UNPATCHED, patched, changed, portable, other_tree)]
    monkeypatch.setattr(toolchain, "compiler_identity", lambda: "another compiler")
    keys.append(key(UNPATCHED))
    assert len(set(keys)) == len(keys)


def test_only_a_native_build_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    portable = replace(UNPATCHED, profile="portable")
    before = key(UNPATCHED), key(portable)
    monkeypatch.setattr(toolchain, "processor_identity", lambda: "another processor")
    assert (key(UNPATCHED) != before[0], key(portable) != before[1]) == (True, False)


def test_only_a_server_for_a_gpu_is_described_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built for the CPU keeps its key, and so its folder, whatever is added for GPUs."""
    monkeypatch.setattr(gpu, "compiler_identity", lambda accelerator: f"compiler of {accelerator}")
    cpu = replace(UNPATCHED, profile="portable")
    rocm = replace(cpu, variant=load_variant("rocm"))
    described = rocm.describe()
    added = {"variant": "rocm-gfx906", "architectures": ["gfx906"], "gpu_compiler": "compiler of rocm"}
    assert described == cpu.describe() | {"options": rocm.options} | added
    assert rocm.options == cpu.options | rocm.variant.cmake_options()
    assert not [name for name in cpu.options if "HIP" in name or "CUDA" in name]


def chosen(*assignments: str, variant: str = "rocm", patches: str | None = None) -> Recipe:
    options = argparse.Namespace(variant=variant, option=list(assignments), patches=patches, profile="portable")
    return chosen_recipe(options)


def test_the_command_line_adds_to_a_variant() -> None:
    recipe = chosen("GGML_HIP_GRAPHS=OFF", "GGML_CUDA_FA_QUANTS=q8_0-q4_0;q8_0-q8_0", "CMAKE_HIP_FLAGS=-DA=1")
    assert recipe.series == load_series("series.rocm")
    assert recipe.options["GGML_HIP"] == "ON"
    assert recipe.options["GGML_HIP_GRAPHS"] == "OFF"
    assert recipe.options["GGML_CUDA_FA_QUANTS"] == "q8_0-q4_0;q8_0-q8_0"
    assert recipe.options["CMAKE_HIP_FLAGS"] == "-DA=1"
    assert chosen(patches="none").series == load_series("none")
    assert chosen(variant="cpu").series == load_series("series")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("GGML_CUDA_FA_QUANTS", "--option 'GGML_CUDA_FA_QUANTS', expected NAME=VALUE such as GGML_CUDA_FA_QUANTS=all"),
        ("=all", "--option '=all', expected NAME=VALUE"),
        ("", "--option '', expected NAME=VALUE"),
        ("CMAKE_HIP_ARCHITECTURES=gfx1030", "--variant names the architectures, such as rocm-gfx1030"),
    ],
)
def test_an_option_that_is_none_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(PinError, match=re.escape(message)):
        chosen(assignment)


def test_the_key_does_not_follow_the_place_or_the_source() -> None:
    text = json.dumps(UNPATCHED.describe())
    assert str(REPOSITORY) not in text
    assert str(Path.home()) not in text
    assert UNPATCHED.pin.sdist_sha256 not in text


@pytest.mark.parametrize("profile", PROFILES)
def test_no_profile_lets_build_or_server_reach_a_network(profile: str) -> None:
    options = replace(UNPATCHED, profile=profile).options
    for name in ("LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL"):
        assert options[name] == "OFF"


def test_the_build_environment_keeps_out_what_the_key_does_not_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("CMAKE_BUILD_TYPE", "Debug")
    environment = toolchain.build_environment(tmp_path / "work", tmp_path)
    assert not {"CXXFLAGS", "CMAKE_BUILD_TYPE"} & environment.keys()
    assert environment["CCACHE_BASEDIR"] == str(tmp_path / "work")


def test_every_missing_tool_is_named_at_once(tmp_path: Path) -> None:
    """On a machine that has Python alone: the interpreter outside of any virtual environment, and no .venv."""
    code = "import pathlib, sys; sys.path.insert(0, sys.argv[1]); from llamacpp import toolchain, console; "
    code += "toolchain.ROOT = pathlib.Path('/nonexistent'); "
    code += "console.run(toolchain.compiler_identity)"
    command = [str(Path(sys.executable).resolve()), "-c", code, str(REPOSITORY / "docker")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "error: what a build needs is not installed:"
    assert lines[1:] == [
        "  cc, c++: bring it with: apt-get install g++",
        "  git: bring it with: apt-get install git",
        "  cmake, ninja: bring it with: make venv",
    ]


def test_statistics_tell_compiled_from_reused() -> None:
    text = (
        "# ../llama.cpp/src/a.cpp\ndirect_cache_hit\nlocal_storage_hit\n"
        "# ../llama.cpp/src/b.cpp\ncache_miss\ndirect_cache_miss\npreprocessed_cache_miss\n"
        "# ../llama.cpp/src/c.cpp\ndirect_cache_miss\npreprocessed_cache_hit\n"
        "# common/build-info.cpp\ncache_miss\n"
    )
    assert toolchain.read_statistics(text) == (["common/build-info.cpp", "src/b.cpp"], 2)


def test_export_replaces_a_build_and_nothing_else(tmp_path: Path) -> None:
    built = Built(tmp_path / "built")
    built.folder.mkdir()
    (built.folder / "build.json").write_text("{}")
    (built.folder / "libggml.so.0").write_text("library")
    (built.folder / "libggml.so").symlink_to("libggml.so.0")
    output = tmp_path / "deep/output"
    export(built, output)
    assert os.readlink(output / "libggml.so") == "libggml.so.0"
    (output / "stale.so").write_text("")
    export(built, output)
    assert sorted(os.listdir(output)) == ["build.json", "libggml.so", "libggml.so.0"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("")
    with pytest.raises(PinError, match="holds no build of llama-server"):
        export(built, tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["notes"]
