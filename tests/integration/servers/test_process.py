import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec, PathSource
from orchestrator.servers.drivers.base import Device, Found, Order
from orchestrator.servers.drivers.process import ProcessDriver, child_environment
from orchestrator.servers.drivers.process_child import ProcessChild
from orchestrator.servers.launch import Launch
from orchestrator.servers.logs import LogBuffer
from tests import FAKE_SERVER
from tests.support.orchestrator import argv_of, environment_of, group_members, is_gone
from tests.support.scripted import write_script
from tests.unit.conftest import until

pytestmark = pytest.mark.integration


class Spawner:
    """Starts fake servers that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = LogBuffer(100)
        self.signs = 0
        self.children: list[ProcessChild] = []

    async def __call__(self, devices: tuple[str, ...] = (), more: tuple[str, ...] = (), **script: Any) -> ProcessChild:
        model = self.folder / "model.gguf"
        write_script(model, script)
        driver = ProcessDriver(FAKE_SERVER, self.folder, "test")
        spec, argv = ModelSpec(name="m", source=PathSource(path="m.gguf")), ("--model", str(model), *more)
        launch = Launch(spec, model, None, argv, devices=devices)
        child = await driver.start(Order("m", launch, self.log, self._sign))
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


def order(log: LogBuffer | None = None) -> Order:
    launch = Launch(ModelSpec(name="m", source=PathSource(path="m.gguf")), Path("m.gguf"), None, ())
    return Order("m", launch, log or LogBuffer(100), lambda: None)


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leave_behind(owner: str, before: str = "") -> int:
    """A process as an orchestrator leaves it that could not end it: marked, in a session of its own, an orphan."""
    sleeper = f"import os, signal, time; {before or 'pass'}; print(os.getpgid(0), flush=True); time.sleep(60)"
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    argv = [sys.executable, "-S", "-c", starter, sys.executable, "-S", "-c", sleeper, "--alias", "m"]
    env = {"SLIPSTREAM_OWNER": owner}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True) as process:
        assert process.stdout is not None
        return int(process.stdout.readline())


async def ended(child: ProcessChild) -> None:
    async with asyncio.timeout(10):
        await child.exited.wait()


async def listening(child: ProcessChild) -> None:
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
    strange = {name for name in env if name.startswith(("LLAMA_ARG_", "HF_", "SLIPSTREAM_"))}
    assert strange == {"SLIPSTREAM_OWNER"}


async def test_it_is_bound_to_the_accelerators_of_its_launch_unless_an_operator_says_otherwise(start: Spawner) -> None:
    child = await start(devices=("CUDA1", "CUDA2"), more=("--device", "CUDA0"))
    argv = argv_of(child.pid)
    first = argv.index("--device")
    assert argv[first + 1] == "CUDA1,CUDA2"
    assert argv.index("--device", first + 1) > argv.index("--model")
    assert "--device" not in argv_of((await start()).pid)


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
    child = await start(line_bytes=3 << 20, lines=1)
    await listening(child)
    said = start.log.tail(100)
    assert len(said) == 3 and said[0] == "line 0" and "listening on" in said[2]
    assert len(said[1]) < 10_000 and said[1].endswith("(cut: longer than 8 KiB)")


async def test_a_flood_of_lines_is_read_to_its_end(start: Spawner) -> None:
    child = await start(lines=20_000)
    await listening(child)
    assert start.log.count == 20_001
    assert len(start.log.tail(10**6)) == 100


@pytest.mark.parametrize("text", ["x\\n", "no end"])
async def test_a_flood_without_end_leaves_time_and_memory_to_others(tmp_path: Path, text: str) -> None:
    flood = tmp_path / "flood"
    flood.write_text(f"#!{sys.executable} -S\nimport os\nwhile True: os.write(1, b'{text}' * 9000)\n")
    flood.chmod(0o755)
    log = LogBuffer(100)
    child = await ProcessDriver(flood, tmp_path, "test").start(order(log=log))
    try:
        await until(lambda: log.count > 0, "the flood has begun")
        held = resident_bytes()
        async with asyncio.timeout(10):
            for _ in range(300):
                await asyncio.sleep(0.001)
        assert resident_bytes() - held < 32 << 20
    finally:
        await child.stop(5.0)
    assert child.failure().exit_code == -signal.SIGTERM


async def test_memory_is_that_of_the_whole_group(start: Spawner) -> None:
    child = await start(child=True)
    await listening(child)
    members = group_members(child.pid)
    assert len(members) == 2
    # The younger one may still be growing between the two looks.
    async with asyncio.timeout(10):
        while await child.host_bytes() != sum(map(resident_bytes, members)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await child.stop(5.0)
    assert await child.host_bytes() is None


async def test_a_kill_of_ours_is_told_from_one_of_others(start: Spawner) -> None:
    ours, theirs = await start(), await start()
    for child in (ours, theirs):
        await listening(child)
    ours.kill()
    os.kill(theirs.pid, signal.SIGKILL)
    await ended(ours)
    await ended(theirs)
    assert ours.failure().message.endswith("killed by SIGKILL, which Slipstream sent")
    assert theirs.failure().message.endswith("killed by SIGKILL")
    assert (ours.failure().reason, theirs.failure().reason) == ("killed", "killed")


async def test_a_kill_for_lack_of_memory_is_known_by_the_kernels_count(
    start: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 3
    monkeypatch.setattr("orchestrator.servers.drivers.process_child.oom_kills", lambda: kills)
    child, other = await start(), await start()
    for each in (child, other):
        await listening(each)
    kills = 4
    os.kill(child.pid, signal.SIGKILL)
    other.kill()
    await ended(child)
    await ended(other)
    # What is counted later changes nothing.
    kills = 3
    assert child.failure().reason == "out_of_memory"
    assert other.failure().reason == "killed"


async def test_a_reason_is_found_behind_a_long_backtrace(start: Spawner) -> None:
    said = "E ggml_aligned_malloc: insufficient memory (attempted to allocate 7815.33 MB)\n"
    child = await start(signal_in_load=signal.SIGABRT, complaint=said + "[New LWP 1]\n" * 80)
    await ended(child)
    assert child.failure().reason == "out_of_memory"
    assert child.failure().log_tail[0] == said.strip()


async def test_flags_are_read_once_and_an_image_is_refused(tmp_path: Path) -> None:
    driver = ProcessDriver(FAKE_SERVER, tmp_path, "test")
    await driver.open()
    assert await driver.flags(None) is await driver.flags(None)
    with pytest.raises(SlipstreamError, match=r"'cuda'.* have no images") as caught:
        await driver.flags("cuda")
    assert caught.value.code is Code.INVALID_MODEL_FILE
    await driver.close()


async def test_what_is_no_llama_server_is_told_when_the_host_is_opened(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError) as caught:
        await ProcessDriver(tmp_path / "gone", tmp_path, "test").open()
    assert caught.value.code is Code.MISCONFIGURED


async def test_devices_are_those_that_the_binary_lists(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    listed = "Available devices:\n  CUDA0: A card (24000 MiB, 23000 MiB free)"
    flags = (
        "-m,    --model FNAME                    model path to load\n--list-devices                          print them"
    )
    binary.write_text(
        f"#!/bin/sh\ncase $1 in --version) echo 'version: 1';; --help) echo '{flags}';; *) echo '{listed}';; esac\n"
    )
    binary.chmod(0o755)
    host, card = await ProcessDriver(binary, tmp_path, "test").devices()
    assert (host.name, host.kind) == ("host", "host") and 0 < host.free_bytes <= host.total_bytes
    assert card == Device("CUDA0", "cuda", 24000 << 20, 23000 << 20)
    [alone] = await ProcessDriver(FAKE_SERVER, tmp_path, "test").devices()
    assert alone.name == "host"


async def test_no_process_for_a_server_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(SlipstreamError, match="'m': Resource temporarily unavailable") as caught:
        await ProcessDriver(FAKE_SERVER, tmp_path, "test").start(order())
    assert caught.value.code is Code.SERVER_START_FAILED


async def test_leftovers_are_found_by_our_mark_alone_and_ended(
    start: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.servers.drivers.process._LEFTOVER_SECONDS", 0.2)
    driver = ProcessDriver(FAKE_SERVER, tmp_path, "test")
    child = await start()
    left, stubborn, foreign = (
        leave_behind("test"),
        leave_behind("test", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"),
        leave_behind("another"),
    )
    try:
        found = await driver.found()
        assert {f.id for f in found} == {str(left), str(stubborn)}
        assert {f.model for f in found} == {"m"}
        with pytest.raises(SlipstreamError) as caught:
            await driver.adopt(found[0], order())
        assert caught.value.code is Code.CONFLICT
        for each in found:
            await driver.remove(each)
            assert not group_members(int(each.id))
        assert await driver.found() == ()
        await driver.remove(Found(str(foreign), "m", ""))
        assert group_members(foreign) and not child.is_dead
    finally:
        os.killpg(foreign, signal.SIGKILL)


async def test_a_leftover_without_its_leader_is_found_too(tmp_path: Path) -> None:
    driver = ProcessDriver(FAKE_SERVER, tmp_path, "test")
    group = leave_behind("test", "os.fork() and os._exit(0)")
    await until(lambda: group not in group_members(group), "the leader is gone")
    [found] = await driver.found()
    assert found.id == str(group)
    await driver.remove(found)
    assert not group_members(group)
