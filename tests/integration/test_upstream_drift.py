"""scripts/upstream-drift on a tiny upstream that moves on, and what scripts/drift-issue makes of what it says."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.support.upstream import Upstream, git, make_series, make_upstream, write_pin

pytestmark = pytest.mark.integration

PARTS = ("docker/llamacpp", "docker/accelerators.toml", "scripts/upstream-drift")
# In place of tests/integration/patches: the tiny server ends at once with its version and a sum.
TESTS = """\
import os, subprocess

def said(variable):
    return subprocess.run([os.environ[variable]], capture_output=True, text=True, check=True).stdout

def test_patched():
    assert said("SLIPSTREAM_TEST_SERVER").endswith(" 6\\n")

def test_unpatched():
    assert said("SLIPSTREAM_TEST_SERVER_UNPATCHED").endswith(" 4\\n")
"""


@dataclass
class Project:
    """A copy of what drift needs, pinned to b7 of a tiny upstream, with one patch for every server and one for rocm."""

    folder: Path
    upstream: Upstream

    def release(self, *tags: str, **edits: tuple[str, str]) -> None:
        """Commit edits of `src/<keyword>.cpp`, old text and new, and tag the commit."""
        for name, (old, new) in edits.items():
            path = self.upstream.tree / f"src/{name}.cpp"
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        work = ("--work-tree", str(self.upstream.tree))
        git(self.upstream.repository, *work, "commit", "--quiet", "--allow-empty", "--all", "--message", tags[0])
        for tag in tags:
            # As a release may have it: a tag that is an object of its own.
            git(self.upstream.repository, "tag", "--annotate", "--message", tag, tag)

    def drift(self, *arguments: str) -> tuple[int, str]:
        """Exit status and report."""
        command = [sys.executable, str(self.folder / "scripts/upstream-drift"), "--git-url", self.upstream.url]
        done = subprocess.run(
            [*command, "--tests", str(self.folder / "checks"), *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"SLIPSTREAM_CACHE": str(self.folder / "cache")},
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        left = [path for path in (self.folder / "cache").glob("*") if path.name != "ccache"]
        assert left == [], "what it built stays out of the cache that an orchestrator looks into"
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    for name in PARTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy2
        copy(REPOSITORY / name, folder / name)
    (folder / "checks").mkdir()
    (folder / "checks/test_tiny.py").write_text(TESTS)
    (folder / "checks/test_version.py").write_text("def test_the_pinned_version() -> None:\n    assert False\n")
    upstream = make_upstream(tmp_path / "upstream")
    patches = folder / "patches"
    make_series(
        upstream, patches, routes=("src/routes.cpp: return 3;", "return 5;"), hip=("src/cpu.cpp: { return", "{  return")
    )
    (patches / "series").write_text("routes.patch\n")
    (patches / "series.rocm").write_text("@series\nhip.patch\n")
    write_pin(upstream.pin, patches / "upstream.toml")
    return Project(folder, upstream)


def test_all_is_well_with_the_tag_of_the_highest_number(project: Project) -> None:
    project.release("b9999", server=("version:", "Version:"))
    project.release("b10000", "v1", "b99999999-rc", "build", server=("Version:", "VERSION:"))
    status, said = project.drift()
    assert status == 0, said
    assert "All is well: llama.cpp b10000 (" in said and "pinned is b7" in said
    assert said.count("| applies |") == 2 and "2 passed" in said
    assert git(project.upstream.repository, "rev-parse", "--short=9", "b10000^{commit}") in said


def test_a_patch_that_no_longer_fits_is_told_with_file_and_hunk(project: Project) -> None:
    project.release("b8", routes=("route_2()", "path_2()"))
    status, said = project.drift()
    assert status == 3
    assert "The patches do not fit: llama.cpp b8" in said
    assert "| routes.patch | **does not apply** |" in said and "| hip.patch | applies |" in said
    assert "src/routes.cpp: hunk 1 of 1 (@@ -1,7 +1,7 @@" in said
    assert "It was not built" in said


def test_every_patch_is_judged_by_itself(project: Project) -> None:
    """The second of three patches fits on top of the first alone, one of whose two hunks is refused."""
    original = (project.upstream.tree / "src/routes.cpp").read_text().splitlines(keepends=True)
    once = [line.replace("return 3", "return 1 + 3") for line in original]
    twice = [line.replace("return 1 + 30", "return 2 + 30") for line in once]
    patches = project.folder / "patches"
    for name, before, after in (("routes", original, once), ("again", once, twice)):
        diff = unified_diff(before, after, "a/src/routes.cpp", "b/src/routes.cpp")
        (patches / f"{name}.patch").write_text("".join(diff))
    (patches / "gone.patch").write_text("--- a/src/gone.cpp\n+++ b/src/gone.cpp\n@@ -1 +1 @@\n-a\n+b\n")
    (patches / "series").write_text("routes.patch\nagain.patch\ngone.patch\n")
    project.release("b8", routes=("int route_3()", "int path_3()"))
    status, said = project.drift()
    assert status == 3
    assert "src/routes.cpp: hunk 1 of 2" in said and "hunk 2 of 2" not in said
    assert "| again.patch | applies |" in said
    assert "git: error: src/gone.cpp: No such file or directory" in said


def test_what_upstream_has_taken_is_told(project: Project) -> None:
    project.release("b8", routes=("return 3;", "return 5;"))
    status, said = project.drift()
    assert status == 3 and "llama.cpp has it already: take it out of the series" in said


def test_a_patch_of_one_accelerator_counts_and_does_not_keep_the_rest_from_being_built(project: Project) -> None:
    project.release("b8", cpu=("threads()", "threads(void)"))
    status, said = project.drift()
    assert status == 3
    assert "| hip.patch | **does not apply** |" in said and "2 passed" in said


def test_a_build_that_fails_shows_the_compiler_and_whose_fault_it_is(project: Project) -> None:
    project.release("b8", server=("int route_3();", "int route_3(int);"))
    status, said = project.drift()
    assert status == 3
    assert "llama.cpp itself does not build: llama.cpp b8 (" in said
    assert "llama.cpp itself, without any patch, does not build" in said and "too few arguments" in said
    project.release("b9", server=("int route_3(int);", "int route_3();"))
    make_series(project.upstream, project.folder / "patches", routes=("src/routes.cpp: return 3;", "return nonsense;"))
    status, said = project.drift()
    assert status == 3
    assert "The patches do not build: llama.cpp b9 (" in said
    assert "With the patches it does not build" in said and "nonsense" in said and "| applies |" in said


def test_a_test_that_fails_shows_itself(project: Project) -> None:
    project.release("b8", server=("+ route_3()", "+ route_3() + 1"))
    status, said = project.drift("--report", str(project.folder / "report.md"))
    assert status == 3
    report = (project.folder / "report.md").read_text()
    assert report.startswith("The patches' tests fail: llama.cpp b8 (") and "2 failed" in report
    assert "assert False" not in said, "the test of the pinned version is left out"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--tag", "b8"], "has no tag b8; the newest is b7"),
        (["--git-url", "/nowhere"], "git ls-remote of /nowhere failed"),
    ],
)
def test_what_cannot_be_found_out_is_no_drift(project: Project, arguments: list[str], why: str) -> None:
    status, said = project.drift(*arguments)
    assert status == 1 and why in said


GH = """\
#!/bin/bash
# A stand-in for gh: one open issue if the file `open` is there; what it is asked is written down.
printf '%s\\n' "$*" >>"$(dirname "$0")/asked"
[[ "$1 $2" != "issue list" || ! -e $(dirname "$0")/open ]] || echo 12
"""


@pytest.mark.parametrize(
    ("status", "is_open", "asked"),
    [
        (0, False, []),
        (0, True, ["issue close 12 --comment All is well"]),
        (3, True, ["issue edit 12 --body-file {report}"]),
        (
            3,
            False,
            [
                "label create upstream-drift",
                "issue create --title llama.cpp's newest tag asks for work --label upstream-drift",
            ],
        ),
    ],
)
def test_one_issue_follows_the_report(tmp_path: Path, status: int, is_open: bool, asked: list[str]) -> None:
    report = tmp_path / "report.md"
    report.write_text("All is well: llama.cpp b10000\n\nmore\n")
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    if is_open:
        (tmp_path / "open").touch()
    command = [str(REPOSITORY / "scripts/drift-issue"), str(report), str(status)]
    subprocess.run(command, check=True, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True)
    said = (tmp_path / "asked").read_text().splitlines()
    assert said[0].startswith("issue list --label upstream-drift --state open")
    for found, expected in zip(said[1:], asked, strict=True):
        assert found.startswith(expected.format(report=report))


def test_no_issue_is_touched_when_nothing_is_known(tmp_path: Path) -> None:
    command = [str(REPOSITORY / "scripts/drift-issue"), str(tmp_path / "report.md"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1 and "no issue is touched" in done.stderr
