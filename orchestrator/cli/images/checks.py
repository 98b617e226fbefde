"""What a check found, and what all of them come to."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What became of a check. What could not be asked although it should be has failed."""

    PASSED = "pass"
    FAILED = "fail"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One line of the answer; `text` is the evidence, or the reason."""

    name: str
    status: Status
    text: str


def passed(name: str, text: str) -> Check:
    """It is as it should be."""
    return Check(name, Status.PASSED, text)


def failed(name: str, text: str) -> Check:
    """It is not, or nobody could say."""
    return Check(name, Status.FAILED, text)


def not_checked(name: str, text: str) -> Check:
    """There is nothing to hold it against, or the caller did not want it."""
    return Check(name, Status.NOT_CHECKED, text)


@dataclass(frozen=True)
class Report:
    """All checks of an image; `digest` is what they were made of."""

    image: str
    digest: str | None
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.status is not Status.FAILED for check in self.checks)

    @property
    def verdict(self) -> str:
        """All of it in a line."""
        counts = {status: sum(check.status is status for check in self.checks) for status in Status}
        words = [f"{counts[Status.PASSED]} passed", f"{counts[Status.FAILED]} failed"]
        return ", ".join([*words, f"{counts[Status.NOT_CHECKED]} not checked"])

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"passed": self.passed}


def differences(named: Iterable[tuple[str, str]]) -> Iterator[str]:
    """`what says value` of each, where they do not all say the same; nothing where they do."""
    pairs = list(named)
    if len({value for _, value in pairs}) > 1:
        yield from (f"{what} says {value or 'nothing'}" for what, value in pairs)
