import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.process import Child, child_environment, spawn
from tests import FAKE_SERVER
from tests.support.orchestrator import argv_of, environment_of, group_members, is_gone
from tests.support.scripted import write_script
from tests.unit.conftest import until


class Spawner:
    """Starts fake servers that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = LogBuffer(100)
        self.signs = 0
        self.children: list[Child] = []

    async def __call__(self, **script: Any) -> Child:
        model = self.folder / "model.gguf"
        write_script(model, script)
        child = await spawn(FAKE_SERVER, ("--model", str(model)), self.folder, self.log, self._sign)
        self.children.append(child)
        return child

    def _sign(self) -> None:
        self.signs += 1


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Spawner]:
    spawner = Spawner(tmp_path)
    yield spawner
    for child in spawner.children:
        await child.stop(0.1)


async def ended(child: Child) -> None:
    async with asyncio.timeout(10):
        await child.exited.wait()


async def listening(child: Child) -> None:
    async with asyncio.timeout(10):
        await child.listening.wait()


async def test_the_port_comes_from_the_log(start: Spawner) -> None:
    child = await start(lines=3)
    with pytest.raises(SlipstreamError) as caught:
        _ = child.url
    assert caught.value.code is Code.SERVER_STOPPED
    await listening(child)
    assert child.url == f"http://127.0.0.1:{child.port}"
    assert start.log.tail(9)[:3] == ("line 0", "line 1", "line 2")
    assert start.signs == 4


async def test_it_leads_a_group_of_its_own(start: Spawner) -> None:
    child = await start()
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    assert os.getsid(child.pid) == child.pid


async def test_environment_is_hermetic(start: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf-secret")
    monkeypatch.setenv("SLIPSTREAM_ADMIN_KEYS_FILE", "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    child = await start()
    await listening(child)
    env = environment_of(child.pid)
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["HOME"] == env["XDG_CONFIG_HOME"] == env["LLAMA_CACHE"] == str(start.folder)
    assert env["LLAMA_API_KEY"] == child.api_key
    assert not {name for name in env if name.startswith(("LLAMA_ARG_", "HF_", "SLIPSTREAM_"))}


async def test_the_key_is_new_and_in_no_argument(start: Spawner) -> None:
    first, second = await start(), await start()
    assert first.api_key != second.api_key
    assert len(first.api_key) >= 24
    for child in (first, second):
        await listening(child)
        assert child.api_key not in " ".join(argv_of(child.pid))
        assert child.api_key not in "".join(start.log.tail(100))


async def test_help_needs_no_key(tmp_path: Path) -> None:
    assert "LLAMA_API_KEY" not in child_environment(tmp_path)


async def test_stop_leaves_nothing_of_the_group(start: Spawner) -> None:
    child = await start(child=True)
    await listening(child)
    assert len(group_members(child.pid)) == 2
    await child.stop(5.0)
    assert group_members(child.pid) == []
    assert child.process.returncode is not None


async def test_a_crash_leaves_nothing_of_the_group(start: Spawner) -> None:
    child = await start(child=True)
    await listening(child)
    os.kill(child.pid, signal.SIGKILL)
    await ended(child)
    await until(lambda: not group_members(child.pid), "the group is empty")
    assert child.failure().reason == "killed"


async def test_stop_kills_what_ignores_term(start: Spawner) -> None:
    child = await start(ignore_term=True)
    await listening(child)
    await child.stop(0.1)
    assert child.process.returncode == -signal.SIGKILL
    assert is_gone(child.pid)


async def test_stop_may_be_called_again(start: Spawner) -> None:
    child = await start()
    await child.stop(5.0)
    await child.stop(5.0)
    assert is_gone(child.pid)


@pytest.mark.parametrize(
    "script, reason, code, said",
    [
        ({"exit_in_load": 1, "complaint": "error: no such thing"}, "exited", 1, "status 1: error: no such thing"),
        ({"exit_in_load": 7}, "exited", 7, "status 7"),
        ({"signal_in_load": signal.SIGSEGV}, "killed", -signal.SIGSEGV, "SIGSEGV"),
        ({"signal_in_load": signal.SIGABRT, "complaint": "GGML_ASSERT(x) failed"}, "killed", -6, "GGML_ASSERT(x)"),
    ],
)
async def test_failure_names_status_or_signal_and_the_complaint(
    start: Spawner, script: dict[str, Any], reason: str, code: int, said: str
) -> None:
    child = await start(**script)
    await ended(child)
    failure = child.failure()
    assert (failure.reason, failure.exit_code) == (reason, code)
    assert said in failure.message


async def test_the_last_lines_before_a_crash_are_kept(start: Spawner) -> None:
    child = await start(lines=400, exit_in_load=1, complaint="error: the last line")
    await ended(child)
    assert child.failure().log_tail[-2:] == ("line 399", "error: the last line")


async def test_a_line_without_end_neither_stops_the_log_nor_fills_memory(start: Spawner) -> None:
    child = await start(line_bytes=3 << 20)
    await listening(child)
    assert max(map(len, start.log.tail(100))) < 1 << 20


async def test_a_flood_of_lines_is_read_to_its_end(start: Spawner) -> None:
    child = await start(lines=20_000)
    await listening(child)
    assert start.log.count == 20_001
    assert len(start.log.tail(10**6)) == 100
