"""What decides a build, what is read back from it, and what is said when a tool is missing. Nothing is compiled."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llamacpp import toolchain
from llamacpp.build import PROFILES, Built, Recipe, export, recipe_key
from llamacpp.pin import PinError, load_pin, load_series
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
