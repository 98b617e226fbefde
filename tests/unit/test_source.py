"""The pin, the content digest, fetching from git and PyPI, and applying patches: on a tiny upstream."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from llamacpp.pin import PATCHES_DIR, Pin, PinError, load_pin, load_series, verify_tree
from llamacpp.source import Origin, fetch, unpack_sdist
from tests import REPOSITORY
from tests.support.upstream import FILES, TAG, Upstream, git, make_series, make_upstream, with_commit

NONE = load_series("none")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return make_upstream(tmp_path / "upstream")


def fetch_git(upstream: Upstream, tmp_path: Path, pin: Pin | None = None, into: str = "into") -> Path:
    target = tmp_path / into
    origin = Origin("git", upstream.url)
    fetch(pin or upstream.pin, NONE, target, origin=origin, cache=tmp_path / "cache")
    return target


def test_the_pin_names_one_version() -> None:
    pin = load_pin()
    assert pin.tag == f"b{pin.build_number}"
    assert pin.sdist_version == f"{pin.build_number}.0.0"
    assert re.fullmatch(r"[0-9a-f]{40}|", pin.commit)
    for digest in (pin.sdist_sha256, pin.tree_sha256, *pin.parts.values()):
        assert re.fullmatch(r"[0-9a-f]{64}", digest)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('tag = "b11434"', "", r"\[git\] tag is None, expected a value of type str"),
        ("build_number = 11434", 'build_number = "11434"', r"\[git\] build_number is '11434', expected .* int"),
        ("[git]", "[git", "not valid TOML"),
    ],
)
def test_a_malformed_pin_is_refused_by_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (PATCHES_DIR / "upstream.toml").read_text()
    assert old in text
    path = tmp_path / "upstream.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PinError, match=message):
        load_pin(path)


def test_every_patch_stands_in_a_series() -> None:
    series = [load_series(path.name) for path in PATCHES_DIR.glob("series*")]
    assert {path.name for path in PATCHES_DIR.glob("*.patch")} == {
        patch.name for one in series for patch in one.patches
    }
    # What every server has comes first, so that an accelerator's own patches are the only difference.
    common = load_series("series").patches
    assert common
    assert all(one.patches[: len(common)] == common for one in series)


def test_series_keeps_order_and_skips_comments(tmp_path: Path) -> None:
    for name in ("a.patch", "b.patch"):
        (tmp_path / name).write_text(name)
    (tmp_path / "series").write_text("# reasons\nb.patch  # first\n\na.patch\n")
    assert [patch.name for patch in load_series("series", tmp_path).patches] == ["b.patch", "a.patch"]


def test_a_series_takes_others_in_where_it_names_them(tmp_path: Path) -> None:
    for name in ("a.patch", "b.patch", "c.patch"):
        (tmp_path / name).write_text(name)
    (tmp_path / "series").write_text("b.patch\n")
    (tmp_path / "series.gpu").write_text("@series\na.patch\n")
    (tmp_path / "series.one").write_text("c.patch\n@series.gpu  # and its own\n")
    assert [patch.name for patch in load_series("series.one", tmp_path).patches] == ["c.patch", "b.patch", "a.patch"]
    (tmp_path / "series.flat").write_text("c.patch\nb.patch\na.patch\n")
    assert load_series("series.flat", tmp_path).digest == load_series("series.one", tmp_path).digest


@pytest.mark.parametrize(
    ("series", "gpu", "message"),
    [
        ("@series.gpu\n", "@series\n", "the patch series series.gpu takes in series takes in series.gpu: a circle"),
        ("a.patch\n", "@series.gpu\n", "the patch series series.gpu takes in series.gpu: a circle"),
        ("a.patch\n", "@series\na.patch\n", "series.gpu:2: a.patch is named twice"),
        ("a.patch\n", "a.patch\n@series\n", "series:1: a.patch is named twice"),
        ("a.patch\n", "@series\n@series\n", "series:1: a.patch is named twice"),
        ("a.patch\nc.patch\n", "@series\n", "series:2: cannot read patch c.patch"),
        ("a.patch\n", "@seires\n", "cannot read the patch series .*/seires: No such file"),
    ],
)
def test_a_series_that_takes_in_wrongly_is_refused(tmp_path: Path, series: str, gpu: str, message: str) -> None:
    (tmp_path / "a.patch").write_text("")
    (tmp_path / "series").write_text(series)
    (tmp_path / "series.gpu").write_text(gpu)
    with pytest.raises(PinError, match=message):
        load_series("series.gpu", tmp_path)


def test_series_digest_follows_names_order_and_bytes(tmp_path: Path) -> None:
    digests = set()
    for series, content in (("a.patch\nb.patch\n", "1"), ("b.patch\na.patch\n", "1"), ("a.patch\nb.patch\n", "2")):
        (tmp_path / "a.patch").write_text(content)
        (tmp_path / "b.patch").write_text("b")
        (tmp_path / "series").write_text(series)
        digests.add(load_series("series", tmp_path).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ("a.patch\na.patch\n", "series:2: a.patch is named twice"),
        ("a.patch\nc.patch\n", "series:2: cannot read patch c.patch"),
    ],
)
def test_a_wrong_series_is_refused_by_line(tmp_path: Path, series: str, message: str) -> None:
    (tmp_path / "a.patch").write_text("")
    (tmp_path / "series").write_text(series)
    with pytest.raises(PinError, match=message):
        load_series("series", tmp_path)


def test_an_unknown_series_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(PinError, match=r"name of a series file in .*, or 'none'"):
        load_series("seires", tmp_path)


def test_the_stamp_names_revision_and_patches(upstream: Upstream, tmp_path: Path) -> None:
    series = make_series(upstream, tmp_path, one=("src/cpu.cpp: 1", "2"))
    assert NONE.stamp(upstream.pin) == "b7-unpatched"
    assert series.stamp(upstream.pin) == f"b7-p{series.digest[:8]}"
    assert NONE.stamp(with_commit(upstream, "0123456789" * 4)) == "012345678-unpatched"


def test_the_digest_is_that_of_coreutils(upstream: Upstream) -> None:
    by_hand = f"find {' '.join(upstream.pin.parts)} -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    done = subprocess.run(by_hand, shell=True, cwd=upstream.tree, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == upstream.pin.tree_sha256


def test_files_outside_the_parts_may_differ(upstream: Upstream) -> None:
    (upstream.tree / "docs/build.md").write_text("changed")
    verify_tree(upstream.tree, upstream.pin)


@pytest.mark.parametrize("change", ["altered", "added", "removed"])
def test_tampering_is_refused_with_counts_and_digests(upstream: Upstream, change: str) -> None:
    if change == "altered":
        (upstream.tree / "src/cpu.cpp").write_text("int threads() { return 2; }\n")
    elif change == "added":
        (upstream.tree / "src/extra.cpp").write_text("")
    else:
        (upstream.tree / "src/cpu.cpp").unlink()
    count = {"altered": 7, "added": 8, "removed": 6}[change]
    with pytest.raises(PinError) as caught:
        verify_tree(upstream.tree, upstream.pin)
    message = str(caught.value)
    assert f"expected 7 files with digest {upstream.pin.tree_sha256}" in message
    assert re.search(rf"found    {count} files with digest [0-9a-f]{{64}}", message)
    assert message.endswith("differs in: src")


def test_a_link_out_of_the_tree_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "outside.cpp").write_text(FILES["src/cpu.cpp"])
    (upstream.tree / "src/cpu.cpp").unlink()
    (upstream.tree / "src/cpu.cpp").symlink_to(tmp_path / "outside.cpp")
    with pytest.raises(PinError, match=r"src/cpu.cpp is a symbolic link to .*outside.cpp"):
        verify_tree(upstream.tree, upstream.pin)


def test_git_gives_the_tree_without_a_repository(upstream: Upstream, tmp_path: Path) -> None:
    target = fetch_git(upstream, tmp_path)
    assert {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()} == set(FILES)
    assert os.listdir(tmp_path / "cache/downloads") == [
        path.name for path in (tmp_path / "cache/downloads").glob("*.git")
    ]


def test_git_clones_once(upstream: Upstream, tmp_path: Path) -> None:
    fetch_git(upstream, tmp_path)
    upstream.repository.rename(tmp_path / "gone")
    assert fetch_git(upstream, tmp_path, into="again").is_dir()


def test_an_unknown_commit_is_told(upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_git(upstream, tmp_path)
    commit = git(upstream.repository, "rev-parse", TAG)
    assert f"tag b7 is commit {commit}; write it into patches/upstream.toml" in capsys.readouterr().err


def test_a_moved_tag_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    commit = git(upstream.repository, "rev-parse", TAG)
    fetch_git(upstream, tmp_path, with_commit(upstream, commit), into="right")
    with pytest.raises(PinError, match=f"is commit {commit}, expected {'1' * 40}: the tag was moved"):
        fetch_git(upstream, tmp_path, with_commit(upstream, "1" * 40))
    assert not (tmp_path / "into").exists()


def test_a_missing_tag_is_refused_and_leaves_nothing(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(PinError, match=r"git clone of file://.* at tag b8 failed: .*b8"):
        fetch_git(upstream, tmp_path, replace(upstream.pin, tag="b8"))
    assert os.listdir(tmp_path / "cache/downloads") == []
    assert not list(tmp_path.glob("*into*"))


def test_fetch_refuses_a_folder_in_use(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into/mine").write_text("")
    with pytest.raises(PinError, match="is there already and is not an empty folder"):
        fetch_git(upstream, tmp_path)
    assert (tmp_path / "into/mine").exists()


def test_patches_apply_inside_another_repository(upstream: Upstream, tmp_path: Path) -> None:
    """There, plain `git apply` skips every file and reports success."""
    git(tmp_path, "init", "--quiet")
    series = make_series(
        upstream, tmp_path / "patches", one=("src/cpu.cpp: 1", "2"), two=("docs/build.md: to", "not to")
    )
    fetch(upstream.pin, series, tmp_path / "into", origin=Origin("git", upstream.url), cache=tmp_path / "cache")
    assert (tmp_path / "into/src/cpu.cpp").read_text() == "int threads() { return 2; }\n"
    assert (tmp_path / "into/docs/build.md").read_text() == "How not to build.\n"


def test_a_patch_that_does_not_apply_names_file_and_hunk(upstream: Upstream, tmp_path: Path) -> None:
    folder = tmp_path / "patches"
    make_series(upstream, folder, good=("src/cpu.cpp: 1", "2"), bad=("src/routes.cpp: return 35;", "return 0;"))
    bad = (folder / "bad.patch").read_text()
    applies = (
        "@@ -1,3 +1,3 @@\n int route_0() { return 0; }\n-int route_1() { return 1; }\n+int route_1() { return 9; }\n"
    )
    first = applies + " int route_2() { return 2; }\n@@"
    (folder / "bad.patch").write_text(bad.replace("@@", first, 1).replace("return 34;", "return 99;"))
    with pytest.raises(PinError) as caught:
        fetch(
            upstream.pin,
            load_series("series", folder),
            tmp_path / "into",
            origin=Origin("git", upstream.url),
            cache=tmp_path / "cache",
        )
    assert str(caught.value).startswith(
        "patch bad.patch does not apply:\n  src/routes.cpp: hunk 2 of 2 (@@ -33,7 +33,7 @@"
    )
    assert not list(tmp_path.glob("*into*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("just words\n", "git: error: No valid patches in input"),
        ("--- a/src/gone.cpp\n+++ b/src/gone.cpp\n@@ -1 +1 @@\n-a\n+b\n", "git: error: src/gone.cpp: No such file"),
    ],
)
def test_a_broken_patch_shows_what_git_says(upstream: Upstream, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "broken.patch").write_text(content)
    (tmp_path / "series").write_text("broken.patch\n")
    series = load_series("series", tmp_path)
    with pytest.raises(PinError, match=f"patch broken.patch does not apply:\n  {message}"):
        fetch(upstream.pin, series, tmp_path / "into", origin=Origin("git", upstream.url), cache=tmp_path / "cache")


def add_member(tar: tarfile.TarFile, name: str, content: str = "", mode: int = 0o644, link: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.mode = mode
    if link:
        member.type, member.linkname = tarfile.SYMTYPE, link
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content.encode()))


def test_unpacking_takes_the_subtree_alone(tmp_path: Path) -> None:
    archive = tmp_path / "tiny-7.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        add_member(tar, "tiny-7/setup.py", "raise SystemExit")
        add_member(tar, "tiny-7/llama.cpp/src/cpu.cpp", "1")
        add_member(tar, "tiny-7/llama.cpp/run.sh", "2", 0o4755)
        add_member(tar, "tiny-7/llama.cppx/no", "3")
    unpack_sdist(archive, tmp_path / "tree")
    found = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert found == {"src/cpu.cpp", "run.sh"}
    assert (tmp_path / "tree/run.sh").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(("name", "link"), [("tiny-7/llama.cpp/../../escape", ""), ("tiny-7/llama.cpp/link", "/etc")])
def test_unpacking_refuses_what_leaves_the_tree(tmp_path: Path, name: str, link: str) -> None:
    archive = tmp_path / "tiny-7.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        add_member(tar, name, link=link)
    with pytest.raises(PinError, match="is not a plain file inside the archive"):
        unpack_sdist(archive, tmp_path / "a/tree")
    assert not (tmp_path / "escape").exists()


@pytest.fixture
def sdist(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    """A real sdist of the tiny upstream, in a folder that pip takes as its only source."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    name = "tiny_upstream-7.0.0"
    with tarfile.open(shelf / f"{name}.tar.gz", "w:gz") as tar:
        project = "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        project += "[project]\nname = 'tiny-upstream'\nversion = '7.0.0'\n[tool.setuptools]\npackages = []\n"
        add_member(tar, f"{name}/pyproject.toml", project)
        add_member(tar, f"{name}/PKG-INFO", "Metadata-Version: 2.1\nName: tiny-upstream\nVersion: 7.0.0\n")
        for file, content in FILES.items():
            add_member(tar, f"{name}/llama.cpp/{file}", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    digest = hashlib.sha256((shelf / f"{name}.tar.gz").read_bytes()).hexdigest()
    return replace(upstream.pin, sdist_sha256=digest)


def test_pip_brings_the_same_tree_as_git(upstream: Upstream, sdist: Pin, tmp_path: Path) -> None:
    fetch(sdist, NONE, tmp_path / "into", origin=Origin("pypi", python=sys.executable), cache=tmp_path / "cache")
    assert os.listdir(tmp_path / "cache/downloads") == ["tiny_upstream-7.0.0.tar.gz"]
    same = subprocess.run(["diff", "-r", tmp_path / "into", fetch_git(upstream, tmp_path, into="git")])
    assert same.returncode == 0


def test_the_download_is_kept_and_checked_on_use(sdist: Pin, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    origin, cache = Origin("pypi", python=sys.executable), tmp_path / "cache"
    fetch(sdist, NONE, tmp_path / "first", origin=origin, cache=cache)
    (cache / "downloads/tiny_upstream-7.0.0.tar.gz").write_bytes(b"cut short")
    fetch(sdist, NONE, tmp_path / "second", origin=origin, cache=cache)
    assert f"expected {sdist.sdist_sha256}: bringing it again" in capfd.readouterr().err
    shutil.rmtree(tmp_path / "shelf")
    fetch(sdist, NONE, tmp_path / "third", origin=origin, cache=cache)


def test_an_sdist_with_another_hash_is_refused(sdist: Pin, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = replace(sdist, sdist_sha256="0" * 64)
    with pytest.raises(PinError, match=r"pip could not bring tiny-upstream==7.0.0"):
        fetch(other, NONE, tmp_path / "into", origin=Origin("pypi", python=sys.executable), cache=tmp_path / "cache")
    assert "HASHES" in capfd.readouterr().err
    assert os.listdir(tmp_path / "cache/downloads") == []


def test_a_python_without_the_backend_is_named(sdist: Pin, tmp_path: Path) -> None:
    origin = Origin("pypi", python=str(tmp_path / "no/python"))
    with pytest.raises(PinError, match=r"no Python with pip, setuptools>=77 .* among: .*no/python\n.* make venv"):
        fetch(sdist, NONE, tmp_path / "into", origin=origin, cache=tmp_path / "cache")


def test_the_command_says_one_message_and_fails(upstream: Upstream, tmp_path: Path) -> None:
    """The tiny upstream is not what the project pins: no tag b11434 in it."""
    command = [str(REPOSITORY / "docker/fetch-llama-cpp"), "--from", "git", "--git-url", upstream.url]
    environment = os.environ | {"SLIPSTREAM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([*command, "--into", tmp_path / "into"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: git clone of file://" in done.stderr
    assert "Traceback" not in done.stderr
