"""What operators asked for: desired state and flags by model, in memory and in the database."""

from dataclasses import dataclass, field

from orchestrator.db import Database
from orchestrator.schemas import Desired, FlagValue


@dataclass(frozen=True)
class Want:
    """Desired state of one server, and the flags that go before its model file's."""

    desired: Desired = Desired.STOPPED
    flags: dict[str, FlagValue] = field(default_factory=dict)


class Wanted:
    """Wants by model. What `keep` has returned for survives a kill at any instant."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wants = {m: Want(desired, flags) for m, (desired, flags) in database.servers().items()}

    def __getitem__(self, model: str) -> Want:
        return self._wants.get(model, Want())

    def running(self) -> list[str]:
        """Models that are to run."""
        return [m for m, want in self._wants.items() if want.desired is Desired.RUNNING]

    async def keep(self, model: str, want: Want) -> None:
        """Write first, then believe."""
        if self[model] != want:
            await self._database.set_server(model, want.desired, want.flags)
            self._wants[model] = want
