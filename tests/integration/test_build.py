"""Building: a tiny CMake project through the real commands, and the servers that `make server` gave."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llamacpp.pin import PATCHES_DIR, PinError, load_pin, load_series, verify_tree
from llamacpp.recipe import Recipe
from llamacpp.source import Origin, cache_root, fetch
from tests import REPOSITORY
from tests.support.polling import eventually
from tests.support.upstream import Upstream, make_series, make_upstream, write_pin

pytestmark = pytest.mark.integration


@dataclass
class Workshop:
    """A copy of the build scripts whose pin is a tiny upstream, with a cache of its own."""

    project: Path
    upstream: Upstream
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def cache(self) -> Path:
        return self.project / "cache"

    def edit(self, **edits: tuple[str, str]) -> None:
        """Make the series these edits; see `make_series`."""
        make_series(self.upstream, self.project / "patches", **edits)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.project / "docker/build-llama-server"), "--from", "git", *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SLIPSTREAM_CACHE": str(self.cache)},
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def build(self, *arguments: str) -> str:
        """Build, and return what was said."""
        process = self.start(*arguments)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 0, said
        return said

    def results(self) -> list[Path]:
        return [path for path in self.cache.glob("llama-server/*") if (path / "build.json").exists()]

    def work(self) -> list[str]:
        """What is left of builds, lock files aside."""
        top = self.cache / "work"
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.suffix != ".lock")


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    project = tmp_path / "project"
    for name in ("docker/build-llama-server", "docker/accelerators.toml", "docker/llamacpp"):
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy2
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        copy(REPOSITORY / name, project / name)
    made = Workshop(project, make_upstream(tmp_path / "upstream"))
    made.edit()
    write_pin(made.upstream.pin, project / "patches/upstream.toml")
    yield made
    for process in made.started:
        process.terminate()
        process.communicate()


def test_a_build_is_one_folder_that_runs(workshop: Workshop, tmp_path: Path) -> None:
    said = workshop.build("--output", str(tmp_path / "output"))
    assert re.search(r"compiled 3 files \(.*\), took 0 from ccache\n", said)
    assert workshop.work() == []
    (folder,) = workshop.results()
    moved = tmp_path / "moved"
    shutil.move(folder, moved)
    for place in (moved, tmp_path / "output"):
        assert sorted(os.listdir(place)) == ["build.json", "libggml-cpu.so", "licenses", "llama-server"]
        assert sorted(os.listdir(place / "licenses")) == ["LICENSE", "LICENSE-http"]
        run = subprocess.run([place / "llama-server"], capture_output=True, text=True, check=True)
        assert run.stdout == "version: (build 7, commit b7-unpatched) in ../llama.cpp/src/server.cpp, 4\n"
        described = json.loads((place / "build.json").read_text())
        assert described["key"] == folder.name
        assert (described["tag"], described["profile"], described["patches"]) == ("b7", "native", [])


def test_the_second_build_does_nothing(workshop: Workshop) -> None:
    workshop.build()
    before = workshop.results()[0].stat().st_ino
    started = time.monotonic()
    process = workshop.start("--print-path")
    out, said = process.communicate(timeout=60)
    assert time.monotonic() - started < 2
    assert (out, said) == (f"{workshop.results()[0] / 'llama-server'}\n", "")
    assert workshop.results()[0].stat().st_ino == before


def test_a_changed_patch_recompiles_what_it_touches(workshop: Workshop) -> None:
    """src/server.cpp holds the stamp, as build-info.cpp does upstream; src/cpu.cpp is not touched."""
    workshop.edit(one=("src/routes.cpp: return 3;", "return 5;"))
    workshop.build()
    workshop.edit(one=("src/routes.cpp: return 3;", "return 6;"))
    said = workshop.build()
    assert "compiled 2 files (src/routes.cpp, src/server.cpp), took 1 from ccache" in said
    assert len(workshop.results()) == 2


def test_two_builds_at_once_compile_once(workshop: Workshop) -> None:
    builds = [workshop.start("--print-path") for _ in range(2)]
    said = [process.communicate(timeout=120) for process in builds]
    assert [process.returncode for process in builds] == [0, 0]
    assert said[0][0] == said[1][0]
    assert sum("compiled" in errors for _, errors in said) == 1


def test_a_compile_error_shows_itself_and_leaves_the_log(workshop: Workshop) -> None:
    workshop.edit(one=("src/routes.cpp: return 3;", "return three;"))
    process = workshop.start()
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert "error: ninja failed with exit status 1; the end of" in said
    assert "'three' was not declared" in said
    assert [re.sub(r"^[0-9a-f]{16}", "KEY", name) for name in workshop.work()] == [
        "KEY",
        "KEY/build.log",
        "KEY/ccache.log",
    ]
    assert workshop.results() == []


def test_a_server_with_another_stamp_is_not_kept(workshop: Workshop) -> None:
    workshop.edit(one=("src/stamp.h.in: build @", "built @"))
    process = workshop.start()
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert re.search(r"--version gave exit status 0 and '.*', expected 0 and 'build 7, commit b7-p[0-9a-f]{8}'", said)
    assert workshop.results() == []
    assert os.listdir(workshop.cache / "llama-server") == []


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_leaves_no_process_and_no_tree(workshop: Workshop, sent: int, status: int) -> None:
    hang = 'project(tiny)\nexecute_process(COMMAND sh -c "echo $$ > ${CMAKE_BINARY_DIR}/started; exec sleep 600")'
    workshop.edit(slow=("CMakeLists.txt: project(tiny C CXX)", hang))
    process = workshop.start()

    def started() -> int:
        return next((int(path.read_text() or 0) for path in workshop.cache.glob("work/*/build/started")), 0)

    child = eventually(started, "the configure step runs", 60)
    # As a terminal does for Ctrl-C, and as a supervisor does for SIGTERM: to the group, or to the process alone.
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == status
    eventually(lambda: not Path(f"/proc/{child}/exe").exists(), "the child is gone")
    assert [name for name in workshop.work() if "/" in name and not name.endswith(".log")] == []
    assert workshop.results() == []


def test_a_patch_that_does_not_fit_the_pin_is_named(tmp_path: Path) -> None:
    """On the real source, whose digest is checked on the way."""
    hunk = "@@ -10,3 +10,3 @@\n never there\n-nor this\n+but that\n not this either\n"
    (tmp_path / "wrong.patch").write_text(f"--- a/common/arg.cpp\n+++ b/common/arg.cpp\n{hunk}")
    (tmp_path / "series").write_text("wrong.patch\n")
    series, pin = load_series("series", tmp_path), load_pin()
    with pytest.raises(PinError) as caught:
        fetch(pin, series, tmp_path / "tree", origin=Origin(), cache=cache_root())
    assert str(caught.value) == ("patch wrong.patch does not apply:\n  common/arg.cpp: hunk 1 of 1 (@@ -10,3 +10,3 @@)")
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize("path", sorted(PATCHES_DIR.glob("series*")), ids=lambda path: path.name)
def test_every_series_applies_to_the_pin(path: Path, tmp_path: Path) -> None:
    series = load_series(path.name)
    fetch(load_pin(), series, tmp_path / "tree", origin=Origin(), cache=cache_root())
    gpu = (tmp_path / "tree/ggml/src/ggml-cuda/ggml-cuda.cu").read_text()
    assert ("GGML_HIP_NO_STAGING" in gpu) == (path.name == "series.rocm")


def test_tampering_with_the_real_source_is_noticed(tmp_path: Path) -> None:
    pin = load_pin()
    fetch(pin, load_series("none"), tmp_path / "tree", origin=Origin(), cache=cache_root())
    with (tmp_path / "tree/common/sampling.cpp").open("a") as file:
        file.write("\n")
    with pytest.raises(PinError, match=r"expected 2823 files[^\0]*found    2823 files[^\0]*differs in: common$"):
        verify_tree(tmp_path / "tree", pin)


@pytest.mark.parametrize("patches", ["series", "none"])
def test_the_server_names_pin_and_patches(patches: str, patched_server: Path, unpatched_server: Path) -> None:
    server = patched_server if patches == "series" else unpatched_server
    recipe = Recipe(load_pin(), load_series(patches), "native")
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    assert f"(build 11434, commit {recipe.stamp})" in done.stdout + done.stderr


def test_the_server_carries_its_libraries_and_no_path(patched_server: Path) -> None:
    folder = patched_server.parent
    linked = subprocess.run(["ldd", patched_server], capture_output=True, text=True, check=True).stdout
    own = re.findall(r"(lib(?:ggml|llama|mtmd)\S*) => (\S+)", linked)
    assert len(own) >= 5
    assert {str(Path(path).parent) for _, path in own} == {str(folder)}
    for file in folder.iterdir():
        if file.is_file() and file.name != "build.json":
            content = file.read_bytes()
            assert str(cache_root()).encode() not in content, file
            assert str(REPOSITORY).encode() not in content, file


def test_server_path_is_quick_and_prints_the_path_alone(patched_server: Path) -> None:
    started = time.monotonic()
    done = subprocess.run(["make", "-s", "server-path"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert time.monotonic() - started < 2
    assert done.stdout == f"{patched_server}\n"
