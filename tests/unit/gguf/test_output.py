"""Files appear whole under their names or not at all, and no input is ever written to."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.copying import CopyRange, Meter
from orchestrator.gguf.output import write_files
from orchestrator.gguf.writer import Blueprint
from tests import REPOSITORY
from tests.support import eventually

CONTENT = bytes(range(256)) * 400
HEADER = b"header"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    path.write_bytes(CONTENT)
    return path


def layout(source: Path, name: str = "out.gguf") -> Blueprint:
    return Blueprint(name, HEADER, (CopyRange(source, 0, len(HEADER), len(CONTENT)),), len(HEADER) + len(CONTENT))


def write(source: Path, *names: str, folder: Path | None = None, overwrite: bool = False) -> None:
    files = [layout(source, name) for name in names or ("out.gguf",)]
    meter = Meter(sum(file.size_bytes for file in files))
    write_files(files, folder or source.parent, inputs=[source], overwrite=overwrite, meter=meter)
    assert meter.done_bytes == meter.total_bytes


def refused(source: Path, *names: str, folder: Path | None = None, overwrite: bool = False) -> SlipstreamError:
    before = sorted(source.parent.iterdir())
    with pytest.raises(SlipstreamError) as caught:
        write(source, *names, folder=folder, overwrite=overwrite)
    assert sorted(source.parent.iterdir()) == before
    assert source.read_bytes() == CONTENT
    assert str(source.parent) not in caught.value.message
    return caught.value


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_written_whole(source: Path) -> None:
    write(source)
    assert (source.parent / "out.gguf").read_bytes() == HEADER + CONTENT
    assert left(source.parent) == ["out.gguf", "source.gguf"]
    assert (source.parent / "out.gguf").stat().st_nlink == 1


def test_the_usual_rights_are_those_of_the_umask(source: Path) -> None:
    before = os.umask(0o027)
    try:
        write(source)
    finally:
        os.umask(before)
    assert (source.parent / "out.gguf").stat().st_mode & 0o777 == 0o640


def test_what_exists_stays_unless_asked(source: Path) -> None:
    target = source.parent / "out.gguf"
    target.write_text("mine")
    error = refused(source)
    assert error.code is Code.CONFLICT and "out.gguf" in error.message and "--force" in (error.hint or "")
    assert target.read_text() == "mine"
    write(source, overwrite=True)
    assert target.read_bytes() == HEADER + CONTENT


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("how", ["itself", "symlink", "hard link", "other way"])
def test_an_input_is_no_target(source: Path, how: str, overwrite: bool) -> None:
    name, folder = "again.gguf", source.parent
    if how == "itself":
        name = source.name
    elif how == "symlink":
        (folder / name).symlink_to(source.name)
    elif how == "hard link":
        (folder / name).hardlink_to(source)
    else:
        (folder / "side").symlink_to(".")
        name, folder = source.name, folder / "side"
    error = refused(source, name, folder=folder, overwrite=overwrite)
    assert error.code is Code.CONFLICT and "input" in error.message


def test_a_dangling_symlink_counts_as_there(source: Path) -> None:
    (source.parent / "out.gguf").symlink_to("nowhere")
    assert refused(source).code is Code.CONFLICT
    write(source, overwrite=True)
    assert not (source.parent / "out.gguf").is_symlink()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_no_target(source: Path, overwrite: bool) -> None:
    (source.parent / "out.gguf").mkdir()
    assert "folder" in refused(source, overwrite=overwrite).message


def test_a_folder_that_is_missing_is_named(source: Path) -> None:
    error = refused(source, folder=source.parent / "models")
    assert error.code is Code.NOT_FOUND and "'models'" in error.message


def test_a_name_that_is_too_long_is_told(source: Path) -> None:
    assert "File name too long" in refused(source, "x" * 250 + ".gguf").message


def test_if_one_of_several_is_there_none_is_written(source: Path) -> None:
    (source.parent / "b").write_text("mine")
    refused(source, "a", "b")
    write(source, "a", "b", overwrite=True)
    assert left(source.parent) == ["a", "b", "source.gguf"]


def test_what_a_killed_process_has_left_is_replaced(source: Path) -> None:
    (source.parent / ".beside-out.gguf").write_bytes(b"half" * 100_000)
    write(source)
    assert left(source.parent) == ["out.gguf", "source.gguf"]
    assert (source.parent / "out.gguf").read_bytes() == HEADER + CONTENT


def test_what_was_linked_before_a_kill_is_not_written_to(source: Path) -> None:
    """Killed between link and unlink, a process leaves its file under both names."""
    target = source.parent / "out.gguf"
    target.write_text("whole")
    (source.parent / ".beside-out.gguf").hardlink_to(target)
    kept = source.parent / "kept"
    kept.hardlink_to(target)
    write(source, overwrite=True)
    assert kept.read_text() == "whole"
    assert target.read_bytes() == HEADER + CONTENT
    assert not (source.parent / ".beside-out.gguf").exists()


def test_a_pipe_in_the_way_does_not_hang(source: Path) -> None:
    os.mkfifo(source.parent / ".beside-out.gguf")
    write(source)
    assert (source.parent / "out.gguf").read_bytes() == HEADER + CONTENT


def test_two_do_not_write_one_file(source: Path) -> None:
    beside = source.parent / ".beside-out.gguf"
    with beside.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        error = refused(source)
        assert error.code is Code.CONFLICT and "another process" in error.message
    write(source)


def test_a_failure_leaves_nothing(source: Path) -> None:
    short = Blueprint("out.gguf", HEADER, (CopyRange(source, 0, 6, len(CONTENT) + 1),), 7 + len(CONTENT))
    with pytest.raises(SlipstreamError):
        write_files([short], source.parent, inputs=[source], overwrite=False, meter=Meter(0))
    assert left(source.parent) == ["source.gguf"]


def test_an_interrupted_write_leaves_nothing(source: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files([layout(source)], source.parent, inputs=[source], overwrite=False, meter=Meter(1, interrupt))
    assert left(source.parent) == ["source.gguf"]


WRITER = """
import sys, time
from pathlib import Path
from orchestrator.gguf.copying import Meter
from tests.unit.gguf.test_output import layout, write_files

def heard(done, total):
    print("writing", flush=True)
    sys.stdin.readline()

source = Path(sys.argv[1])
write_files([layout(source)], source.parent, inputs=[source], overwrite=True, meter=Meter(1, heard))
"""


@contextmanager
def writer(source: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that stands still in the middle of writing."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("existing", [None, "old"])
def test_a_kill_leaves_the_old_file_or_none(source: Path, existing: str | None) -> None:
    target = source.parent / "out.gguf"
    if existing:
        target.write_text(existing)
    with writer(source) as process:
        assert refused(source, overwrite=True).code is Code.CONFLICT, "it is being written"
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert (target.read_text() if target.exists() else None) == existing
    eventually(lambda: (source.parent / ".beside-out.gguf").exists(), "its half file is left")
    write(source, overwrite=True)
    assert target.read_bytes() == HEADER + CONTENT
    assert left(source.parent) == ["out.gguf", "source.gguf"]


def test_somebody_else_may_be_faster(source: Path) -> None:
    """A file that appears while ours is written is not replaced by it."""
    target = source.parent / "out.gguf"

    def appear(done: int, total: int) -> None:
        target.write_text("theirs")

    with pytest.raises(SlipstreamError) as caught:
        meter = Meter(1, appear)
        write_files([layout(source)], source.parent, inputs=[source], overwrite=False, meter=meter)
    assert caught.value.code is Code.CONFLICT
    assert target.read_text() == "theirs"
    assert left(source.parent) == ["out.gguf", "source.gguf"]
