"""Hosts: machines that run servers, what memory they give, and the ways to run a model on them."""

from dataclasses import dataclass, field

from orchestrator.schemas import Place
from orchestrator.servers.drivers.base import Device, Driver
from orchestrator.servers.launch import Launch
from orchestrator.servers.scheduling import Needs


@dataclass
class Host:
    """A machine with its driver. `budgets` bounds what servers may hold there, bytes by device.

    `configured` names the devices whose bound an operator has set, `expected_accelerators` is how many they say there
    are at least. `loading` counts loads under way, `moves` all loads and ends so far: what is free on an accelerator
    tells of one server only while no other one comes or goes.
    """

    name: str
    driver: Driver
    devices: tuple[Device, ...] = ()
    budgets: dict[str, int] = field(default_factory=dict)
    configured: frozenset[str] = frozenset()
    expected_accelerators: int = 0
    loading: int = 0
    moves: int = 0

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Names of its devices other than RAM."""
        return tuple(d.name for d in self.devices if d.is_accelerator)

    def add_held(self, needs: Needs) -> None:
        """A server that was taken over held this when the memory was looked at, so it was not free."""
        for device in self.devices:
            if device.is_accelerator and device.name not in self.configured:
                held = self.budgets.get(device.name, device.free_bytes) + needs.get(device.name, 0)
                self.budgets[device.name] = min(device.total_bytes, held)

    def given(self, place: Place) -> tuple[Device, ...]:
        """The devices that a model may use: RAM, and the accelerators its model file names, or all."""
        return tuple(d for d in self.devices if not d.is_accelerator or not place.devices or d.name in place.devices)


@dataclass(frozen=True)
class Goal:
    """One way to run a model: as this launch, on this host, holding this memory.

    `load_seconds` is what its last load took; None when it has never been ready so.
    """

    host: Host
    launch: Launch
    needs: Needs
    load_seconds: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has been ready so before."""
        return self.load_seconds is not None

    def version(self, generation: int) -> str:
        """What tells its instances from those of another; a restart makes a new generation of the same."""
        return f"{self.launch.key}.{generation}"

    @property
    def devices(self) -> tuple[str, ...]:
        """Accelerators that the server gets."""
        return tuple(d.name for d in self.host.given(self.launch.spec.place) if d.is_accelerator)
