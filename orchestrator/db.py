"""The database: what was asked for and must survive a kill at any instant."""

import asyncio
import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from orchestrator.errors import Code, SlipstreamError, folder_refused
from orchestrator.schemas import AuditEntry, BenchRound, Desired, FlagValue, JobError, JobLine, JobState

_SCHEMA = """
create table if not exists servers (
    model text primary key,
    desired text not null,
    flags text not null
) strict;
create table if not exists jobs (
    number integer primary key,
    id text not null unique,
    kind text not null,
    subject text not null,
    key text not null,
    request text not null,
    created real not null,
    state text not null,
    started real,
    ended real,
    runs integer not null,
    result text,
    error text
) strict;
create table if not exists job_lines (
    job text not null references jobs (id) on delete cascade,
    number integer not null,
    at real not null,
    text text not null,
    primary key (job, number)
) strict, without rowid;
create table if not exists idempotency_keys (
    key text primary key,
    job text not null references jobs (id) on delete cascade,
    fingerprint text not null
) strict;
create table if not exists observed (
    launch text not null,
    host text not null,
    needs text not null,
    load_seconds real not null,
    primary key (launch, host)
) strict, without rowid;
create table if not exists bench (
    model text primary key,
    at real not null,
    launch text not null,
    settings text not null,
    spec_type text not null,
    rounds text not null
) strict;
create table if not exists owner (
    id text not null
) strict;
create table if not exists audit (
    number integer primary key,
    at real not null,
    method text not null,
    path text not null,
    key text not null,
    client text not null,
    dry_run integer not null,
    status integer,
    milliseconds real,
    count integer not null,
    refused integer not null
) strict;
create index if not exists audit_by_kind on audit (refused, number);
"""
_OWNER_BYTES = 8
_ROUNDS = TypeAdapter(tuple[BenchRound, ...])
_AUDIT_COLUMNS = tuple(AuditEntry.model_fields)
# Apart, so that who has no key cannot push out what those with one have done.
_KEPT_AUDIT_ENTRIES = {False: 10_000, True: 1_000}
T = TypeVar("T")


@dataclass(frozen=True)
class JobRecord:
    """What is kept of a job. `key` names the work, so that a second request for it is known as such."""

    id: str
    kind: str
    subject: str
    key: str
    request: dict[str, Any]
    created: float
    state: JobState = JobState.QUEUED
    started: float | None = None
    ended: float | None = None
    runs: int = 0
    result: dict[str, Any] | None = None
    error: JobError | None = None


_JOB_COLUMNS = tuple(field.name for field in fields(JobRecord))


@dataclass(frozen=True)
class BenchRecord:
    """A measurement that is kept for a model; `launch` and `settings` say how its server ran, in two ways."""

    model: str
    at: float
    launch: str
    settings: str
    spec_type: str
    rounds: tuple[BenchRound, ...]


@dataclass(frozen=True)
class IdempotencyKey:
    """A key a client sent, the job it got, and the fingerprint of what it asked for."""

    key: str
    job: str
    fingerprint: str


class Database:
    """One SQLite file. Writes run in a thread, one after the other, and are on disk when they return."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _own(folder)
        except OSError as e:
            raise folder_refused("state", folder, e) from e
        try:
            self._db = sqlite3.connect(folder / "slipstream.db", check_same_thread=False, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._db.execute("pragma foreign_keys = on")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as e:
            os.close(self._lock_fd)
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"the database {folder / 'slipstream.db'} cannot be used: {e}",
                hint="move it away to begin with an empty one: desired servers and jobs are then forgotten",
            ) from e
        self._thread = ThreadPoolExecutor(1, "database")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._thread.shutdown()
        self._db.close()
        os.close(self._lock_fd)

    def owner(self) -> str:
        """A name for the one who owns this folder, made once: servers that outlive us are known by it."""
        row = self._db.execute("select id from owner").fetchone()
        if row is None:
            row = (secrets.token_hex(_OWNER_BYTES),)
            self._db.execute("insert into owner values (?)", row)
        return str(row[0])

    def observed(self) -> dict[tuple[str, str], tuple[dict[str, int], float]]:
        """By launch and host: memory in bytes by device, and seconds that a load took."""
        rows = self._db.execute("select launch, host, needs, load_seconds from observed").fetchall()
        return {(launch, host): (json.loads(needs), seconds) for launch, host, needs, seconds in rows}

    async def set_observed(self, launch: str, host: str, needs: dict[str, int], load_seconds: float) -> None:
        """Keep what was measured of a launch."""
        row = (launch, host, json.dumps(needs), load_seconds)
        await self._run(lambda db: db.execute("insert or replace into observed values (?, ?, ?, ?)", row))

    def benches(self) -> list[BenchRecord]:
        """Every measurement that is kept."""
        rows = self._db.execute("select model, at, launch, settings, spec_type, rounds from bench").fetchall()
        return [
            BenchRecord(model, at, launch, settings, spec_type, _ROUNDS.validate_json(rounds))
            for model, at, launch, settings, spec_type, rounds in rows
        ]

    async def set_bench(self, record: BenchRecord) -> None:
        """Keep a measurement in place of the model's earlier one."""
        rounds = _ROUNDS.dump_json(record.rounds).decode()
        row = (record.model, record.at, record.launch, record.settings, record.spec_type, rounds)
        await self._run(lambda db: db.execute("insert or replace into bench values (?, ?, ?, ?, ?, ?)", row))

    async def forget_bench(self, model: str) -> None:
        """Drop the measurement of a model, if there is one."""
        await self._run(lambda db: db.execute("delete from bench where model = ?", (model,)))

    def servers(self) -> dict[str, tuple[Desired, dict[str, FlagValue]]]:
        """Desired state and flags of every server that was ever asked for."""
        rows = self._db.execute("select model, desired, flags from servers").fetchall()
        return {model: (Desired(desired), json.loads(flags)) for model, desired, flags in rows}

    async def set_server(self, model: str, desired: Desired, flags: dict[str, FlagValue]) -> None:
        """Keep desired state and flags of a server."""
        await self._run(
            lambda db: db.execute(
                "insert or replace into servers values (?, ?, ?)", (model, str(desired), json.dumps(flags))
            )
        )

    def jobs(self) -> list[JobRecord]:
        """Every job that is kept, in the order they were asked for."""
        columns = ", ".join(_JOB_COLUMNS)
        return [_job(row) for row in self._db.execute(f"select {columns} from jobs order by number").fetchall()]

    async def set_job(self, job: JobRecord, idempotency_key: IdempotencyKey | None = None) -> None:
        """Keep a job as it is now, and with it the key it was asked for with."""

        def write(db: sqlite3.Connection) -> None:
            changes = ", ".join(f"{column} = excluded.{column}" for column in _JOB_COLUMNS)
            db.execute(
                f"insert into jobs ({', '.join(_JOB_COLUMNS)}) values ({', '.join('?' * len(_JOB_COLUMNS))}) "
                f"on conflict (id) do update set {changes}",
                _row(job),
            )
            if idempotency_key is not None:
                _insert_key(db, idempotency_key)

        await self._run(write)

    async def forget_jobs(self, ids: Iterable[str]) -> None:
        """Drop jobs with their lines and idempotency keys."""
        rows = [(id,) for id in ids]
        await self._run(lambda db: db.executemany("delete from jobs where id = ?", rows))

    def idempotency_keys(self) -> list[IdempotencyKey]:
        """Those of the jobs that are kept."""
        rows = self._db.execute("select key, job, fingerprint from idempotency_keys").fetchall()
        return [IdempotencyKey(*row) for row in rows]

    async def add_idempotency_key(self, key: IdempotencyKey) -> None:
        """Keep a further key of a job."""
        await self._run(lambda db: _insert_key(db, key))

    async def job_lines(self, job: str, after: int = 0) -> list[JobLine]:
        """Lines of a job whose numbers are greater than `after`."""
        query = "select number, at, text from job_lines where job = ? and number > ? order by number"
        rows = await self._run(lambda db: db.execute(query, (job, after)).fetchall())
        return [JobLine(number=number, at=at, text=text) for number, at, text in rows]

    async def add_job_lines(self, job: str, lines: Sequence[JobLine], kept: int) -> None:
        """Add lines, and drop those that are not among the last `kept`."""

        def write(db: sqlite3.Connection) -> None:
            rows = [(job, line.number, line.at, line.text) for line in lines]
            db.executemany("insert into job_lines values (?, ?, ?, ?)", rows)
            db.execute("delete from job_lines where job = ? and number <= ?", (job, lines[-1].number - kept))

        await self._run(write)

    async def add_audit_entry(self, entry: AuditEntry, *, refused: bool = False) -> int:
        """Keep an entry, and drop the oldest of its kind beyond the bound; its number is the one returned."""
        values = entry.model_dump(exclude={"number"})

        def write(db: sqlite3.Connection) -> int:
            columns, marks = ", ".join((*values, "refused")), ", ".join("?" * (len(values) + 1))
            added = db.execute(f"insert into audit ({columns}) values ({marks})", (*values.values(), refused))
            db.execute(
                "delete from audit where refused = ? and number <= "
                "(select number from audit where refused = ? order by number desc limit 1 offset ?)",
                (refused, refused, _KEPT_AUDIT_ENTRIES[refused]),
            )
            return int(added.lastrowid or 0)

        return await self._run(write)

    async def end_audit_entry(self, number: int, status: int, milliseconds: float) -> None:
        """Note how a call was answered."""
        row = (status, milliseconds, number)
        await self._run(lambda db: db.execute("update audit set status = ?, milliseconds = ? where number = ?", row))

    async def count_audit_entry(self, number: int, count: int) -> None:
        """Note how many calls an entry stands for."""
        await self._run(lambda db: db.execute("update audit set count = ? where number = ?", (count, number)))

    async def audit_entries(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """The newest entries, of those whose numbers are less than `before`."""
        query = f"select {', '.join(_AUDIT_COLUMNS)} from audit where number < ? order by number desc limit ?"
        bound = before if before is not None else (1 << 63) - 1
        rows = await self._run(lambda db: db.execute(query, (bound, limit)).fetchall())
        return [AuditEntry.model_validate(dict(zip(_AUDIT_COLUMNS, row, strict=True))) for row in rows]

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction, in the thread; it is done as a whole or not at all."""

        def transaction() -> T:
            self._db.execute("begin immediate")
            try:
                answer = work(self._db)
                self._db.execute("commit")
                return answer
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            raise SlipstreamError(
                Code.DISK_FULL, "the disk of the state folder is full", hint="make room and try again"
            ) from e


def _row(job: JobRecord) -> tuple[Any, ...]:
    """Values for _JOB_COLUMNS."""
    values = {column: getattr(job, column) for column in _JOB_COLUMNS}
    values["request"] = json.dumps(job.request)
    values["result"] = None if job.result is None else json.dumps(job.result)
    values["error"] = None if job.error is None else job.error.model_dump_json()
    return tuple(values.values())


def _job(row: tuple[Any, ...]) -> JobRecord:
    values = dict(zip(_JOB_COLUMNS, row, strict=True))
    values["request"] = json.loads(values["request"])
    values["state"] = JobState(values["state"])
    values["result"] = None if values["result"] is None else json.loads(values["result"])
    values["error"] = None if values["error"] is None else JobError.model_validate_json(values["error"])
    return JobRecord(**values)


def _insert_key(db: sqlite3.Connection, key: IdempotencyKey) -> None:
    db.execute("insert into idempotency_keys values (?, ?, ?)", (key.key, key.job, key.fingerprint))


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
