"""Looks at servers: one at a time however many ask, every server in parallel, in a thread.

No look wakes or starts anything. Each instance is read when it becomes ready, in looks, and once more just before it is
told to end, so that what it has counted is kept; one that dies takes with it what came after the last look.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import SlipstreamError
from orchestrator.servers.drivers.base import Child
from orchestrator.servers.launch import Launch
from orchestrator.servers.reading import Target, read_pages
from orchestrator.servers.scheduling import Phase
from orchestrator.telemetry.exposition import Exposition, Family, read_exposition
from orchestrator.telemetry.ledger import Account, Ledger
from orchestrator.telemetry.look import Look, Values
from orchestrator.telemetry.page import give_way

if TYPE_CHECKING:
    from orchestrator.servers.server import Server

_BEGIN_TIMEOUT_SECONDS = 5.0
# Of a server that goes: whoever waits for its room waits for this.
_END_TIMEOUT_SECONDS = 0.5
# Looks are kept for rates over the last seconds; those that come sooner than this are not.
_KEPT_SECONDS = 10.0
_SPACING_SECONDS = 0.5
_OLDEST_SECONDS = 60.0
# They wait more than they work: as many servers may end at once as there are.
_THREADS = 16
_READ = (Phase.READY, Phase.DRAINING)
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Scraper:
    """Owns what models have counted. Called on the event loop; what it does runs in threads."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._families: dict[str, Family] = {}
        self._failures: dict[str, int] = {}
        self._kept: deque[Look] = deque()
        self._newest: Look | None = None
        self._looking: asyncio.Future[tuple[Look, Any]] | None = None
        # By number of the instance, from its first to before its last reading.
        self._counting: dict[int, tuple[Target, Account]] = {}
        # Over everything else that threads touch.
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="look")

    async def begin(self, number: int, child: Child, launch: Launch) -> None:
        """Instance `number` has warmed up and takes requests from now on."""
        target, account = Target.of(number, child), Account(launch.spec.name, launch.spec_type)
        await self.in_thread(lambda: self._begin(target, account, launch.key))
        self._counting[number] = target, account

    async def end(self, number: int, *, is_dead: bool) -> None:
        """Instance `number` is about to be told to end, or has. Raises nothing: no server is kept from its end."""
        # From here on looks leave it alone, also one that is under way: what that has read is older.
        try:
            target, _ = self._counting.pop(number)
            await self.in_thread(lambda: self._end(number, None if is_dead else target))
        except Exception as e:
            _log.error("what a server has counted at its end is lost", exc_info=e)

    async def look(self, servers: Iterable["Server"], timeout_seconds: float) -> Look:
        """Ask every server that serves, or share the look that is under way. The caller may be cancelled freely."""
        if self._looking is None or self._looking.done():
            work = self._reading(servers, timeout_seconds)
            self._looking = self._begun(lambda: (work(), None))
        return (await asyncio.shield(self._looking))[0]

    async def made(self, servers: Iterable["Server"], timeout_seconds: float, make: Callable[[Look], T]) -> T:
        """What `make` makes of such a look, in the same thread: each change of thread costs the event loop more than
        the look itself.
        """
        if self._looking is not None and not self._looking.done():
            look = await self.look(servers, timeout_seconds)
            return await self.in_thread(lambda: make(look))
        work = self._reading(servers, timeout_seconds)
        looking = self._begun(lambda: (look := work(), make(look)))
        self._looking = looking
        return (await asyncio.shield(looking))[1]

    async def recent(self, servers: Iterable["Server"], timeout_seconds: float) -> tuple[Look, Look | None]:
        """A look that is half a second old at most, and the one before it that rates are counted from, if there is.

        That is the oldest of the last ten seconds, else the last one of the last minute.
        """
        newest = self._newest
        if newest is None or time.monotonic() - newest.at > _SPACING_SECONDS:
            newest = await self.look(servers, timeout_seconds)
        ages = ((newest.at - look.at, look) for look in list(self._kept))
        return newest, next((look for age, look in ages if _SPACING_SECONDS <= age <= _OLDEST_SECONDS), None)

    async def close(self) -> None:
        """No thread is left. Every instance has ended before."""
        if self._looking is not None:
            await asyncio.wait({self._looking})
        self._threads.shutdown()

    def _reading(self, servers: Iterable["Server"], timeout_seconds: float) -> Callable[[], Look]:
        """Work for a thread: all models, the instances to ask, and which of them serve, are those of now."""
        models: set[str] = set()
        asked: dict[int, tuple[Target, Account]] = {}
        serving: set[int] = set()
        for server in servers:
            models.add(server.model)
            for instance in server.instances:
                if instance.phase in _READ and (counting := self._counting.get(instance.number)) is not None:
                    asked[instance.number] = counting
            if server.serving is not None:
                serving.add(server.serving.number)
        return partial(self._read, models, asked, serving, timeout_seconds)

    def _begun(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns; others' long work on files holds up no thread of these."""
        return await self._begun(work)

    def _read(
        self,
        models: set[str],
        asked: dict[int, tuple[Target, Account]],
        serving: set[int],
        timeout_seconds: float,
    ) -> Look:
        pages = read_pages([target for target, _ in asked.values()], timeout_seconds)
        at = time.monotonic()
        found: dict[int, Exposition] = {}
        for number, page in pages.items():
            if (exposition := _readable(page)) is not None:
                found[number] = exposition
            give_way()
        gauges: dict[Account, Values] = {}
        with self._lock:
            self._ledger.keep_only(models)
            self._failures = {model: self._failures.get(model, 0) for model in sorted(models)}
            for number, (_, account) in asked.items():
                if number not in self._counting:
                    continue
                exposition = found.get(number)
                if exposition is not None:
                    self._count(number, exposition)
                if number in serving and exposition is not None:
                    gauges[account] = exposition.gauges
                elif number in serving:
                    self._failures[account.model] += 1
            look = Look(
                at,
                self._ledger.sums(),
                gauges,
                self._ledger.current(),
                self._ledger.flags(),
                dict(self._failures),
                dict(self._families),
            )
            self._keep(look)
        return look

    def _keep(self, look: Look) -> None:
        self._newest = look
        if self._kept and look.at - self._kept[-1].at < _SPACING_SECONDS:
            return
        # The last one before stays, however old: there may be none younger to count from.
        while len(self._kept) > 1 and look.at - self._kept[0].at > _KEPT_SECONDS:
            self._kept.popleft()
        self._kept.append(replace(look, families={}))

    def _begin(self, target: Target, account: Account, flags: str) -> None:
        exposition = self._asked(target, _BEGIN_TIMEOUT_SECONDS)
        with self._lock:
            self._ledger.begin(target.number, account, flags)
            if exposition is not None:
                self._count(target.number, exposition)

    def _end(self, number: int, target: Target | None) -> None:
        exposition = None if target is None else self._asked(target, _END_TIMEOUT_SECONDS)
        with self._lock:
            if exposition is not None:
                self._count(number, exposition)
            self._ledger.end(number)

    def _asked(self, target: Target, timeout_seconds: float) -> Exposition | None:
        page = read_pages([target], timeout_seconds).get(target.number)
        return None if page is None else _readable(page)

    def _count(self, number: int, exposition: Exposition) -> None:
        self._families.update(exposition.families)
        self._ledger.count(number, exposition.counters)


def _readable(page: bytes) -> Exposition | None:
    try:
        return read_exposition(page)
    except SlipstreamError as e:
        _log.debug("%s", e.message)
        return None
