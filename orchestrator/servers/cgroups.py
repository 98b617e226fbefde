"""What the kernel's control groups say of this process: its bound on memory, and who was killed for it.

Version 2 and version 1; of a container the root of the mount is its own group.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_MOUNT = Path("/sys/fs/cgroup")
_OOM_KILL = "oom_kill"


def memory_limit_bytes(proc: Path = _PROC, mount: Path = _MOUNT) -> int | None:
    """The least bound of our group and of those it lies in; None where there is none."""
    limits = []
    for folder in _folders(proc, mount):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def oom_kills(proc: Path = _PROC, mount: Path = _MOUNT) -> int:
    """How often the kernel has killed something of our group for lack of memory, by whatever bound.

    Where no group counts, as in the root of version 2, the kernel's count for the whole machine.
    """
    for folder in _folders(proc, mount):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _count(folder / name)) is not None:
                return count
    return _count(proc / "vmstat") or 0


def _folders(proc: Path, mount: Path) -> Iterator[Path]:
    """Folders of our group and of those it lies in, the innermost first."""
    lines = ""
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text()
    for line in lines.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root = mount
        elif "memory" in controllers.split(","):
            root = mount / "memory"
        else:
            continue
        # A group outside of our own namespace is told with `..`, and is not to be seen.
        inner = root / ("" if ".." in path else path.strip("/"))
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root) and folder.is_dir())


def _count(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == _OOM_KILL:
                return int(value)
    return None
