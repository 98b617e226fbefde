"""From a model file to the ways it can run: files found, flags checked, hazards weighed, memory counted, by host."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagValue, ModelSpec
from orchestrator.servers.files import ModelFiles, Resolved
from orchestrator.servers.hosts import Goal, Host
from orchestrator.servers.launch import Site, check_flags, plan_launch
from orchestrator.servers.memory import Observed, needs
from orchestrator.servers.telling import does_not_fit

_MIB = 1 << 20


@dataclass(frozen=True)
class Goals:
    """Plans launches. Looks at the disk and asks drivers for flags, so state is read after it."""

    files: ModelFiles
    hosts: Mapping[str, Host]
    observed: Observed

    async def of(self, spec: ModelSpec, flags: dict[str, FlagValue]) -> tuple[Goal, ...]:
        """Every way to run a model, in the order of the hosts; SlipstreamError of the first host when there is none."""
        resolved = await asyncio.to_thread(self.files.resolve, spec)
        goals: list[Goal] = []
        errors: list[SlipstreamError] = []
        for host in self._allowed(spec):
            try:
                goals.append(await self._on(host, resolved, flags))
            except SlipstreamError as e:
                errors.append(e)
        if not goals:
            raise errors[0]
        return tuple(goals)

    async def check(self, spec: ModelSpec, flags: dict[str, FlagValue]) -> dict[str, FlagValue]:
        """Canonical names of an operator's flags, checked as far as can be without the files."""
        errors: list[SlipstreamError] = []
        for host in self._allowed(spec):
            try:
                table = await host.driver.flags(spec.place.image)
                checked = table.check(flags)
                check_flags(spec, checked, table)
                return checked
            except SlipstreamError as e:
                errors.append(e)
        raise errors[0]

    def _allowed(self, spec: ModelSpec) -> list[Host]:
        if spec.place.host is None:
            return list(self.hosts.values())
        if spec.place.host not in self.hosts:
            raise SlipstreamError(
                Code.INVALID_MODEL_FILE,
                f"place.host of {spec.name!r} is {spec.place.host!r}; there are {', '.join(self.hosts)}",
            )
        return [self.hosts[spec.place.host]]

    async def _on(self, host: Host, resolved: Resolved, flags: dict[str, FlagValue]) -> Goal:
        spec = resolved.spec
        unknown = set(spec.place.devices) - set(host.accelerators)
        if unknown:
            raise SlipstreamError(
                Code.INVALID_MODEL_FILE,
                f"place.devices of {spec.name!r} names {', '.join(sorted(unknown))}; the host {host.name!r} has "
                f"{', '.join(host.accelerators) or 'no accelerator'}",
            )
        devices = host.given(spec.place)
        table = await host.driver.flags(spec.place.image)
        launch = plan_launch(resolved, flags, table, Site(host.name, devices))
        usable = tuple(replace(d, free_bytes=host.budgets.get(d.name, d.free_bytes)) for d in devices)
        measured = self.observed.needs(launch.key, host.name)
        held = await asyncio.to_thread(needs, resolved, launch.flags, usable, spec.place, measured)
        goal = Goal(host, launch, held, self.observed.load_seconds(launch.key, host.name))
        over = [
            f"{name} needs {size / _MIB:,.0f} MiB of {host.budgets[name] / _MIB:,.0f} MiB on {host.name!r}"
            for name, size in goal.needs.items()
            if name in host.budgets and size > host.budgets[name]
        ]
        if over:
            raise does_not_fit(spec.name, "; ".join(over))
        return goal
