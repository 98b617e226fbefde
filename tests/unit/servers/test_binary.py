import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers import child_environment, find_binary, read_flags
from tests import FAKE_SERVER


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def built(cache: Path, key: str, seconds: int, build: Any = None) -> Path:
    """A server in the cache, asked for last at this time."""
    server = program(cache / "llama-server" / key / "llama-server")
    record = server.with_name("build.json")
    record.write_text(json.dumps({"patches": "abc"} if build is None else build))
    os.utime(record, (seconds, seconds))
    return server


def refused(configured: Path | None, cache: Path) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        find_binary(configured, cache)
    assert caught.value.code is Code.MISCONFIGURED
    return caught.value


def test_the_configured_one_wins(tmp_path: Path) -> None:
    built(tmp_path, "x", 1)
    mine = program(tmp_path / "mine")
    assert find_binary(mine, tmp_path) == mine


def test_a_configured_one_is_absolute_for_the_servers_run_in_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert find_binary(Path("mine"), tmp_path) == tmp_path / "mine"


def test_a_configured_one_must_be_a_program(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    for path in (tmp_path / "gone", tmp_path / "text", tmp_path):
        assert str(path) in refused(path, tmp_path).message


def test_the_patched_one_that_was_asked_for_last(tmp_path: Path) -> None:
    built(tmp_path, "old", 100)
    newest = built(tmp_path, "new", 200)
    built(tmp_path, "older", 50)
    assert find_binary(None, tmp_path) == newest


@pytest.mark.parametrize("build", [{"patches": None}, {"patches": ""}, {}, [], "x"])
def test_an_unpatched_or_unknown_one_is_not_taken_unasked(tmp_path: Path, build: Any) -> None:
    built(tmp_path, "x", 1, build)
    error = refused(None, tmp_path)
    assert error.hint is not None and "make server" in error.hint


async def test_flags_and_version_come_from_the_program(tmp_path: Path) -> None:
    table = await read_flags(FAKE_SERVER, child_environment(tmp_path))
    assert table.version == "0.6.0-dev (build 11434, commit fake)"
    assert table.has("ctx-size")


@pytest.mark.parametrize(
    "text, word",
    [
        ("#!/bin/sh\n", "printed nothing"),
        ("#!/bin/sh\necho hello\n", "no --model"),
        ("#!/bin/sh\necho no such library >&2; exit 127\n", "127: no such library"),
        ("not a program at all\n", "mine"),
        ("#!/no/such/interpreter\n", "mine"),
    ],
)
async def test_what_is_no_llama_server_is_told(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(SlipstreamError, match=word) as caught:
        await read_flags(program(tmp_path / "mine", text), child_environment(tmp_path))
    assert caught.value.code is Code.MISCONFIGURED
