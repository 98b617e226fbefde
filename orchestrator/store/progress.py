"""How long work of this room says how far it is."""

from typing import Protocol


class Progress(Protocol):
    """What `jobs.child.Reporter` gives a job's work. Calls are cheap and may come as often as bytes do."""

    def phase(self, name: str, total_bytes: int | None = None, file: str | None = None, done_bytes: int = 0) -> None:
        """A phase begins; `advance` counts from 0 again. `done_bytes` were there before, and count for no rate."""

    def advance(self, done_bytes: int) -> None:
        """Bytes done in this phase, all together."""

    def downloaded(self, source: str, count_bytes: int) -> None:
        """So many more bytes have come over the network, from a kind of source; those that were here are none."""

    def line(self, text: str) -> None:
        """Something worth a line in the job's log."""


class Silent:
    """Progress that nobody hears."""

    def phase(self, name: str, total_bytes: int | None = None, file: str | None = None, done_bytes: int = 0) -> None:
        """Nothing."""

    def advance(self, done_bytes: int) -> None:
        """Nothing."""

    def downloaded(self, source: str, count_bytes: int) -> None:
        """Nothing."""

    def line(self, text: str) -> None:
        """Nothing."""
