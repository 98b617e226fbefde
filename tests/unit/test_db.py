import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.db import Database
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, FlagValue

FLAGS: dict[str, FlagValue] = {"ctx-size": 4096, "temp": 0.5, "kv-unified": True, "flash-attn": "auto"}


async def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    with Database(tmp_path / "state") as database:
        assert database.servers() == {}
        await database.set_server("a", Desired.RUNNING, FLAGS)
        await database.set_server("a", Desired.STOPPED, FLAGS)
        await database.set_server("b", Desired.RUNNING, {})
    with Database(tmp_path / "state") as database:
        assert database.servers() == {"a": (Desired.STOPPED, FLAGS), "b": (Desired.RUNNING, {})}


async def test_writes_at_the_same_time_all_arrive(tmp_path: Path) -> None:
    with Database(tmp_path) as database:
        await asyncio.gather(*(database.set_server(f"m{i}", Desired.RUNNING, {}) for i in range(50)))
        assert len(database.servers()) == 50


def test_an_acknowledged_write_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, pathlib\n"
        "from orchestrator.db import Database\n"
        "from orchestrator.schemas import Desired\n"
        f"database = Database(pathlib.Path({str(tmp_path)!r}))\n"
        "asyncio.run(database.set_server('a', Desired.RUNNING, {'ctx-size': 1}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=dict(os.environ))
    assert done.returncode == -9
    with Database(tmp_path) as database:
        assert database.servers() == {"a": (Desired.RUNNING, {"ctx-size": 1})}


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    with Database(tmp_path):
        with pytest.raises(SlipstreamError) as caught:
            Database(tmp_path)
        assert caught.value.code is Code.MISCONFIGURED
        assert caught.value.hint is not None and "--workers" in caught.value.hint
    with Database(tmp_path) as again:
        assert again.servers() == {}


def test_only_its_owner_reads_the_folder(tmp_path: Path) -> None:
    with Database(tmp_path / "state"):
        assert (tmp_path / "state").is_dir()
        assert (tmp_path / "state" / "lock").stat().st_mode & 0o077 == 0
