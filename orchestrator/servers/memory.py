"""Memory of servers by device: estimated from the files' headers, corrected by what was measured."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.db import Database
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagValue, Place
from orchestrator.servers.drivers.base import HOST, Child, Device
from orchestrator.servers.estimates import estimated
from orchestrator.servers.files import Resolved
from orchestrator.servers.spread import spread

_MIB = 1 << 20
_SHARE_OF_RAM = 0.9
# An accelerator counts as free again when this much of what was held has come back.
_SHARE_BACK = 0.8
_POLL_SECONDS = 0.2
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?")
Look = Callable[[], Awaitable[Sequence[Device]]]
"""Asks what is free on the devices of a host now."""
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": _MIB, "GiB": 1 << 30, "TiB": 1 << 40}


def needs(
    resolved: Resolved,
    flags: Mapping[str, FlagValue],
    devices: Sequence[Device],
    place: Place,
    measured: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Bytes by device that a server will hold. What the model file says of it goes before any estimate.

    `free_bytes` of an accelerator is what may be used of it. What was measured of this very launch replaces the
    estimate, but is never taken for less than the weights: pages that no prompt has touched yet were not seen.
    Reads headers, once for each state of the files: not for the event loop.
    """
    if place.memory:
        return dict(place.memory)
    load, process_bytes = estimated(resolved, flags)
    shares = spread(load, process_bytes, flags, devices)
    if not measured:
        return shares.needs
    return {name: max(measured.get(name, size), shares.weights[name]) for name, size in shares.needs.items()} | {
        name: size for name, size in measured.items() if name not in shares.needs
    }


@dataclass
class Observed:
    """What was measured of launches, by launch and host; it goes before estimates."""

    database: Database

    def __post_init__(self) -> None:
        self._known = self.database.observed()

    def needs(self, launch: str, host: str) -> dict[str, int] | None:
        """Bytes by device that the launch held; None when it was never measured there."""
        known = self._known.get((launch, host))
        return None if known is None else dict(known[0])

    def load_seconds(self, launch: str, host: str) -> float | None:
        """How long its last load took."""
        known = self._known.get((launch, host))
        return None if known is None else known[1]

    async def record(self, launch: str, host: str, needs: dict[str, int], load_seconds: float) -> None:
        """Keep what was measured. The largest counts: a server that has worked holds more than a fresh one."""
        known = self.needs(launch, host) or {}
        most = {name: max(size, known.get(name, 0)) for name, size in needs.items()}
        await self.database.set_observed(launch, host, most, load_seconds)
        self._known[launch, host] = (most, load_seconds)


async def measure(look: Look, child: Child, before: Sequence[Device]) -> dict[str, int]:
    """Bytes by device that a server holds; `before` is what was free when it was started. Empty when unknown."""
    held = {}
    host = await child.host_bytes()
    if host is not None:
        held[HOST] = host
    had = {d.name: d.free_bytes for d in before if d.is_accelerator}
    if had:
        now = {d.name: d.free_bytes for d in await look()}
        held |= {name: max(0, free - now[name]) for name, free in had.items() if name in now}
    return held


async def until_back(
    look: Look,
    before: Sequence[Device],
    held: Mapping[str, int],
    is_quiet: Callable[[], bool],
    timeout_seconds: float,
) -> bool:
    """Wait until the memory that a server held on accelerators is free again; whether that was seen.

    `before` is what was free while it still ran. Once another server loads there (`is_quiet` is false) nothing can be
    told any more. RAM needs no wait: it is back when the process is reaped.
    """
    had = {d.name: d.free_bytes for d in before}
    try:
        async with asyncio.timeout(timeout_seconds):
            while is_quiet():
                now = {d.name: d.free_bytes for d in await look()}
                if all(now.get(n, 0) - had.get(n, 0) >= size * _SHARE_BACK for n, size in held.items() if n in had):
                    return True
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        pass
    return False


def budgets(devices: Sequence[Device], configured: Mapping[str, int]) -> dict[str, int]:
    """What servers may hold by device: as configured, else most of the RAM, and what accelerators have free."""
    return {
        d.name: configured[d.name] if d.name in configured
        else d.free_bytes if d.is_accelerator
        else int(d.total_bytes * _SHARE_OF_RAM)
        for d in devices
    }  # fmt: skip


def parse_memory(text: str) -> dict[str, int]:
    """`host=24GiB,CUDA0=30GiB` as bytes by device; SlipstreamError misconfigured says what is wrong."""
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, size = part.partition("=")
        match = _SIZE.fullmatch(size.strip())
        if not name.strip() or match is None:
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"SLIPSTREAM_MEMORY: {part!r} is no size of a device; expected for example host=24GiB or CUDA0=30GiB",
            )
        size_bytes = int(float(match[1]) * _UNITS[match[2] or ""])
        if size_bytes == 0 or name.strip() in found:
            wrong = f"{name.strip()!r} is named twice" if size_bytes else f"{part!r} gives it nothing"
            raise SlipstreamError(Code.MISCONFIGURED, f"SLIPSTREAM_MEMORY: {wrong}")
        found[name.strip()] = size_bytes
    return found
