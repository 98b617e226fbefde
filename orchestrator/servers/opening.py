"""Hosts are opened: connected, looked at, and given the bounds of what servers may hold there."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.accelerators import Missing, why_missing
from orchestrator.servers.binary import find_binary
from orchestrator.servers.drivers.base import HOST, Driver
from orchestrator.servers.drivers.process import ProcessDriver, child_environment
from orchestrator.servers.hosts import Host
from orchestrator.servers.memory import budgets, parse_memory

LOCAL = "local"
PROCESSOR = "cpu"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opened:
    """Hosts by name, in the order of the hosts file, and what is not there though it is expected."""

    hosts: dict[str, Host]
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """A host that is not open yet. `declared` is how many accelerators there are said to be, of which kind `kind`."""

    driver: Driver
    configured: dict[str, int]
    declared: int
    kind: str | None = None


@dataclass(frozen=True)
class Opening:
    """What hosts are opened with. `owner` names this orchestrator to servers that outlive it.

    `llama_server` is the configured binary, else the newest built one in `cache` is taken. `accelerator` is what this
    machine is said to compute on, such as `cuda`; None when nobody says.
    """

    llama_server: Path | None
    cache: Path
    empty_folder: Path
    owner: str
    hosts_file: Path | None = None
    memory: str | None = None
    accelerator: str | None = None

    @asynccontextmanager
    async def hosts(self) -> AsyncIterator[Opened]:
        """The hosts; their drivers are closed at the end."""
        async with AsyncExitStack() as stack:
            hosts: dict[str, Host] = {}
            missing: list[Missing] = []
            failed: list[SlipstreamError] = []
            for name, candidate in self._candidates().items():
                stack.push_async_callback(candidate.driver.close)
                try:
                    hosts[name] = await _opened(name, candidate)
                    missing += await self._missing(candidate, hosts[name])
                except SlipstreamError as e:
                    # The others serve all the same; a restart looks for this one again.
                    _log.error("host %s is left out: %s", name, e.message)
                    failed.append(e)
                    if e.details.get("reason") == Code.NO_ACCELERATOR:
                        missing.append(Missing(e.message, e.hint))
            if not hosts:
                raise failed[0]
            yield Opened(hosts, tuple(missing))

    def _candidates(self) -> dict[str, _Candidate]:
        if self.hosts_file is None:
            return {LOCAL: self._here(parse_memory(self.memory or ""))}
        # Only who has a hosts file pays for the import of a Docker client.
        from orchestrator.servers.drivers.docker import DockerDriver
        from orchestrator.servers.drivers.hosts import load_hosts

        return {
            spec.name: self._here(dict(spec.memory))
            if spec.driver == "process"
            else _Candidate(DockerDriver(spec, self.owner), dict(spec.memory), spec.devices.expected)
            for spec in load_hosts(self.hosts_file)
        }

    def _here(self, configured: dict[str, int]) -> _Candidate:
        kind = None if self.accelerator == PROCESSOR else self.accelerator
        return _Candidate(self._process(), configured, int(kind is not None), kind)

    async def _missing(self, candidate: _Candidate, host: Host) -> list[Missing]:
        """A llama-server that finds no GPU computes on the processor, slowly and without an error (llama.cpp#22561)."""
        driver, kind = candidate.driver, candidate.kind
        # Of a process of this machine alone: elsewhere nothing can be looked at.
        if isinstance(driver, ProcessDriver) and kind and all(device.kind != kind for device in host.devices):
            env = child_environment(self.empty_folder)
            missing = await why_missing(kind, driver.binary, driver.listed, env)
            _log.error("host %s: %s%s", host.name, missing.message, f" ({missing.hint})" if missing.hint else "")
            return [missing]
        expected, seen = host.expected_accelerators, len(host.accelerators)
        if seen < expected:
            _log.warning(
                "host %s: settings or the hosts file speak of %d accelerators, and llama-server sees %d",
                *(host.name, expected, seen),
            )
        return []

    def _process(self) -> ProcessDriver:
        return ProcessDriver(find_binary(self.llama_server, self.cache), self.empty_folder, self.owner)


async def _opened(name: str, candidate: _Candidate) -> Host:
    await candidate.driver.open()
    devices, configured = await candidate.driver.devices(), candidate.configured
    expected = max(candidate.declared, sum(device != HOST for device in configured))
    host = Host(name, candidate.driver, devices, budgets(devices, configured), frozenset(configured), expected)
    told = ", ".join(f"{k} {v / (1 << 30):.1f} GiB" for k, v in host.budgets.items())
    _log.info("host %s: servers may hold %s", name, told)
    return host
