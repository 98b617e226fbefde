"""Memory arithmetic of one decision: what is held, what comes back, what is spoken for."""

from collections import defaultdict
from collections.abc import Mapping

from orchestrator.servers.scheduling.world import Instance, Needs, Option, World

_Bytes = defaultdict[str, int]


def _by_host() -> defaultdict[str, _Bytes]:
    return defaultdict(lambda: defaultdict(int))


class Room:
    """Two counts by host and device. `held` is in use now: every instance to its end, and what starts in this decision.

    `bound` is in use once all that goes has gone, and is promised to those that wait for that. What starts must fit
    into both: it neither exceeds a budget nor takes what an earlier demand waits for.
    """

    def __init__(self, world: World) -> None:
        self._budgets: Mapping[str, Needs] = world.budgets
        self._held = _by_host()
        self._bound = _by_host()
        for instance in world.instances:
            _add(self._held[instance.host], instance.needs)
            _add(self._bound[instance.host], instance.needs)

    def budget(self, host: str, device: str) -> int | None:
        """Bytes that servers may hold on a device; None without a bound."""
        return self._budgets.get(host, {}).get(device)

    def release(self, instance: Instance) -> None:
        """It goes: its memory will come back."""
        bound = self._bound[instance.host]
        for device, size in instance.needs.items():
            bound[device] -= size

    def claim(self, option: Option) -> None:
        """Speak for the memory of one that starts later."""
        _add(self._bound[option.host], option.needs)

    def take(self, option: Option) -> None:
        """One starts now."""
        _add(self._held[option.host], option.needs)
        _add(self._bound[option.host], option.needs)

    def fits(self, option: Option) -> bool:
        """Whether it may start at this moment."""
        return not self.lacking(option)

    def short(self, option: Option) -> dict[str, int]:
        """Bytes that are missing by device even when all that goes has gone."""
        return self._missing(option, self._bound[option.host])

    def lacking(self, option: Option) -> dict[str, int]:
        """Bytes that are missing by device at this moment: when there are none it `fits`."""
        held, bound = self._held[option.host], self._bound[option.host]
        return self._missing(option, {device: max(held[device], bound[device]) for device in option.needs})

    def _missing(self, option: Option, used: Mapping[str, int]) -> dict[str, int]:
        budgets = self._budgets.get(option.host, {})
        needs = {device: size for device, size in option.needs.items() if size > 0 and device in budgets}
        missing = {device: size + used.get(device, 0) - budgets[device] for device, size in needs.items()}
        return {device: size for device, size in missing.items() if size > 0}


def relieved(short: Mapping[str, int], needs: Needs) -> dict[str, int]:
    """What is still missing once an instance with these needs has gone."""
    left = {device: size - needs.get(device, 0) for device, size in short.items()}
    return {device: size for device, size in left.items() if size > 0}


def helps(short: Mapping[str, int], needs: Needs) -> bool:
    """Whether an instance holds any of what is missing."""
    return any(needs.get(device, 0) > 0 for device in short)


def _add(used: _Bytes, needs: Needs) -> None:
    for device, size in needs.items():
        used[device] += size
