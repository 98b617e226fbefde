"""Process groups of this machine: what they hold, and which of them an orchestrator left behind."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.servers.drivers.base import Found

MARK = "SLIPSTREAM_OWNER"
"""Variable in the environment of servers that names who started them."""


def group_bytes(group: int) -> int | None:
    """Resident memory of a group, file pages included; None when there is no such group any more."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for entry in _members(group):
        with suppress(OSError, ValueError, IndexError):
            total += int((entry / "statm").read_text().split()[1]) * page
    return total or None


def is_alive(group: int) -> bool:
    """Whether anything of a group still runs; what only waits to be reaped does not."""
    return any(_state(entry) not in ("Z", "X", "") for entry in _members(group))


def marked(owner: str) -> tuple[Found, ...]:
    """Groups that carry the mark of an owner and are not led by a child of this process."""
    found: dict[int, Found] = {}
    for entry in _processes():
        with suppress(OSError, ValueError):
            environment = (entry / "environ").read_bytes().split(b"\0")
            if entry.stat().st_uid != os.geteuid() or f"{MARK}={owner}".encode() not in environment:
                continue
            group = os.getpgid(int(entry.name))
            if group != os.getpgid(0) and _parent(group) != os.getpid():
                model = _argument(entry, "--alias")
                if model or group not in found:
                    found[group] = Found(str(group), model or "?", "")
    return tuple(found.values())


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _members(group: int) -> Iterator[Path]:
    for entry in _processes():
        with suppress(OSError):
            if os.getpgid(int(entry.name)) == group:
                yield entry


def _stat(entry: Path) -> list[str]:
    """Fields of /proc/PID/stat from the state on: the name before them may hold anything."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _state(entry: Path) -> str:
    with suppress(OSError, IndexError):
        return _stat(entry)[0]
    return ""


def _parent(pid: int) -> int | None:
    with suppress(OSError, IndexError, ValueError):
        return int(_stat(Path("/proc") / str(pid))[1])
    return None


def _argument(entry: Path, name: str) -> str | None:
    argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return argv[argv.index(name) + 1] if name in argv[:-1] else None
