"""Hosts are opened: connected, looked at, and given the bounds of what servers may hold there."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import SlipstreamError
from orchestrator.servers.binary import find_binary
from orchestrator.servers.drivers.base import HOST, Driver
from orchestrator.servers.drivers.process import ProcessDriver
from orchestrator.servers.hosts import Host
from orchestrator.servers.memory import budgets, parse_memory

LOCAL = "local"
PROCESSOR = "cpu"
_log = logging.getLogger(__name__)


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
    async def hosts(self) -> AsyncIterator[dict[str, Host]]:
        """Hosts by name, in the order of the hosts file; their drivers are closed at the end."""
        drivers = self._drivers()
        async with AsyncExitStack() as stack:
            hosts = {}
            failed: list[SlipstreamError] = []
            for name, (driver, configured, declared) in drivers.items():
                stack.push_async_callback(driver.close)
                try:
                    await driver.open()
                    devices = await driver.devices()
                except SlipstreamError as e:
                    # The others serve all the same; a restart looks for this one again.
                    _log.error("host %s is left out: %s", name, e.message)
                    failed.append(e)
                    continue
                expected = max(declared, sum(device != HOST for device in configured))
                hosts[name] = Host(name, driver, devices, budgets(devices, configured), frozenset(configured), expected)
                _warn_of_missing(hosts[name])
                told = ", ".join(f"{k} {v / (1 << 30):.1f} GiB" for k, v in hosts[name].budgets.items())
                _log.info("host %s: servers may hold %s", name, told)
            if not hosts:
                raise failed[0]
            yield hosts

    def _drivers(self) -> dict[str, tuple[Driver, dict[str, int], int]]:
        """Drivers by host, with the configured bounds and how many accelerators there are said to be."""
        here = int(self.accelerator not in (None, PROCESSOR))
        if self.hosts_file is None:
            return {LOCAL: (self._process(), parse_memory(self.memory or ""), here)}
        # Only who has a hosts file pays for the import of a Docker client.
        from orchestrator.servers.drivers.docker import DockerDriver
        from orchestrator.servers.drivers.hosts import load_hosts

        drivers: dict[str, tuple[Driver, dict[str, int], int]] = {}
        for spec in load_hosts(self.hosts_file):
            is_here = spec.driver == "process"
            driver = self._process() if is_here else DockerDriver(spec, self.owner)
            drivers[spec.name] = (driver, dict(spec.memory), here if is_here else spec.devices.expected)
        return drivers

    def _process(self) -> ProcessDriver:
        return ProcessDriver(find_binary(self.llama_server, self.cache), self.empty_folder, self.owner)


def _warn_of_missing(host: Host) -> None:
    """A llama-server that finds no GPU computes on the processor, slowly and without an error (llama.cpp#22561)."""
    expected, seen = host.expected_accelerators, len(host.accelerators)
    if seen < expected:
        _log.warning(
            "host %s: GPU expected and not used: settings or the hosts file speak of %d, llama-server sees %d; look at "
            "its driver and at what is given to the container",
            host.name,
            expected,
            seen,
        )
