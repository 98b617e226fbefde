"""The database: what was asked for and must survive a kill at any instant."""

import asyncio
import fcntl
import json
import os
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, FlagValue

_SCHEMA = """
create table if not exists servers (
    model text primary key,
    desired text not null,
    flags text not null
) strict
"""


class Database:
    """One SQLite file. Writes run in a thread and are on disk when they return."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _own(folder)
        except OSError as e:
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"the state folder {folder} cannot be written: {e.strerror}",
                hint=f"give it to this user: chown -R {os.getuid()}:{os.getgid()} {folder}",
            ) from e
        try:
            self._db = sqlite3.connect(folder / "slipstream.db", check_same_thread=False, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._db.execute(_SCHEMA)
        except sqlite3.Error as e:
            os.close(self._lock_fd)
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"the database {folder / 'slipstream.db'} cannot be used: {e}",
                hint="move it away to begin with an empty one: what servers should run is then forgotten",
            ) from e
        self._turn = asyncio.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._db.close()
        os.close(self._lock_fd)

    def servers(self) -> dict[str, tuple[Desired, dict[str, FlagValue]]]:
        """Desired state and flags of every server that was ever asked for."""
        rows = self._db.execute("select model, desired, flags from servers").fetchall()
        return {model: (Desired(desired), json.loads(flags)) for model, desired, flags in rows}

    async def set_server(self, model: str, desired: Desired, flags: dict[str, FlagValue]) -> None:
        """Keep desired state and flags of a server."""
        async with self._turn:
            await asyncio.to_thread(
                self._db.execute,
                "insert or replace into servers values (?, ?, ?)",
                (model, str(desired), json.dumps(flags)),
            )


def _own(folder: Path) -> int:
    """Lock the folder for this process: one process owns all state. The kernel frees the lock with us."""
    fd = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SlipstreamError(
            Code.MISCONFIGURED,
            f"another orchestrator owns {folder}",
            hint="one process owns all state: run without --workers, or give each its own SLIPSTREAM_STATE_DIR",
        ) from None
    return fd
