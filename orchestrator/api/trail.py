"""The audit log: who changed what over the API, written before it is done and completed when it is answered."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.db import Database
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import AuditEntry, AuditList

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_LONGEST_PATH = 200
_WRITE_INTERVAL_SECONDS = 1.0
# Rows of one minute. An address is easily forged where a proxy is trusted, so it alone bounds nothing.
_REFUSED_ROWS = 64
_log = logging.getLogger(__name__)


@dataclass
class _Refused:
    """Refused calls of one minute, address, key and status. `number` is None before it was written."""

    entry: AuditEntry
    count: int = 0
    number: int | None = None
    written: int = 0


class Trail:
    """Writes entries into the database."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._minute = 0
        self._refused: dict[tuple[str, str, int], _Refused] = {}
        self._unwritten: list[_Refused] = []
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def begin(self, scope: Scope) -> int | None:
        """Note a call before anything is done; None when the disk is full, which only the log then tells.

        A full disk must not shut out the calls that make room.
        """
        entry = self._entry(scope, scope.get("state", {}).get("key", "none"))
        try:
            return await self._database.add_audit_entry(entry)
        except SlipstreamError as e:
            if e.code is not Code.DISK_FULL:
                raise
            _log.error("not in the audit log, as the disk is full: %s", entry)
            return None

    async def end(self, number: int | None, status: int, seconds: float) -> None:
        """Note its answer."""
        if number is None:
            return
        try:
            await self._database.end_audit_entry(number, status, round(seconds * 1000, 3))
        except SlipstreamError as e:
            _log.error("entry %d of the audit log stays without its status %d: %s", number, status, e.message)

    def refused(self, scope: Scope, key: str, status: int) -> None:
        """Count a call that was refused at the door. It is written within a second."""
        entry = self._entry(scope, key, status)
        minute = int(entry.at // 60)
        if minute != self._minute:
            self._minute, self._refused = minute, {}
        client = entry.client if len(self._refused) < _REFUSED_ROWS else "others"
        known = (entry.client, key, status) in self._refused
        at = (entry.client if known else client, key, status)
        row = self._refused.setdefault(at, _Refused(entry.model_copy(update={"client": at[0]})))
        row.count += 1
        if row not in self._unwritten:
            self._unwritten.append(row)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_now_and_then())

    async def page(self, limit: int, before: int | None) -> AuditList:
        """The newest entries, refused calls up to this moment with them."""
        await self._write()
        return AuditList(entries=tuple(await self._database.audit_entries(limit, before)))

    async def close(self) -> None:
        """Write what is still to be written."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait({self._writer})
        await self._write()

    async def _write_now_and_then(self) -> None:
        while self._unwritten:
            await self._write()
            await asyncio.sleep(_WRITE_INTERVAL_SECONDS)

    async def _write(self) -> None:
        async with self._writing:
            rows, self._unwritten = self._unwritten, []
            try:
                for row in rows:
                    count = row.count
                    if row.number is None:
                        entry = row.entry.model_copy(update={"count": count})
                        row.number = await self._database.add_audit_entry(entry, refused=True)
                    else:
                        await self._database.count_audit_entry(row.number, count)
            except SlipstreamError as e:
                _log.error("refused calls are missing in the audit log: %s", e.message)

    def _entry(self, scope: Scope, key: str, status: int | None = None) -> AuditEntry:
        values = parse_qs(scope["query_string"].decode("latin-1")).get("dry_run", [""])
        return AuditEntry(
            number=0,
            at=self._clock(),
            method=scope["method"][:_LONGEST_PATH],
            path=scope["path"][:_LONGEST_PATH],
            key=key,
            client=str((scope.get("client") or ("unknown",))[0]),
            dry_run=values[-1].lower() in _TRUE,
            status=status,
        )


class Audited:
    """ASGI middleware: every call under `/api` that does not only read is in the trail before `app` sees it."""

    def __init__(self, app: ASGIApp, trail: Trail) -> None:
        self._app = app
        self._trail = trail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note it, let `app` answer, and note the status before the client has it."""
        is_call = scope["type"] == "http" and scope["path"].startswith("/api/")
        if not is_call or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        number = await self._trail.begin(scope)
        is_ended = False

        async def end(status: int) -> None:
            nonlocal is_ended
            if not is_ended:
                is_ended = True
                await self._trail.end(number, status, time.monotonic() - began)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                await end(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            await end(500)
            raise
