"""Control groups, read from trees like those of the kernel."""

from pathlib import Path

import pytest

from orchestrator.servers.cgroups import memory_limit_bytes, oom_kills


class Kernel:
    """A /proc and a /sys/fs/cgroup made of files."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        self.write("proc/self/cgroup", "")
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 5\n")
        self.mount.mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @property
    def limit(self) -> int | None:
        return memory_limit_bytes(self.proc, self.mount)

    @property
    def kills(self) -> int:
        return oom_kills(self.proc, self.mount)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_version_2_counts_the_groups_around_ours(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/a/b\n")
    kernel.write("cgroup/a/b/memory.max", "max\n")
    assert kernel.limit is None
    kernel.write("cgroup/a/memory.max", "1000\n")
    assert kernel.limit == 1000
    kernel.write("cgroup/a/b/memory.max", "700\n")
    assert kernel.limit == 700


def test_version_1(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a\n0::/\n")
    kernel.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    kernel.write("cgroup/memory/a/memory.limit_in_bytes", "800\n")
    assert kernel.limit == 800


@pytest.mark.parametrize(
    "line, file", [("0::/docker/1", "memory.max"), ("4:memory:/docker/1", "memory/memory.limit_in_bytes")]
)
def test_in_a_container_the_mount_is_our_group(kernel: Kernel, line: str, file: str) -> None:
    kernel.write("proc/self/cgroup", f"{line}\n")
    kernel.write(f"cgroup/{file}", "600\n")
    assert kernel.limit == 600


def test_where_nothing_is_said_there_is_no_bound(kernel: Kernel) -> None:
    assert kernel.limit is None
    kernel.write("proc/self/cgroup", "0::/../../outside\n")
    kernel.write("memory.max", "1\n")
    assert kernel.limit is None


def test_who_was_killed_is_counted_by_the_innermost_group(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/a\n")
    kernel.write("cgroup/a/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 9\n")
    kernel.write("cgroup/memory.events", "oom_kill 8\n")
    assert kernel.kills == 3


def test_version_1_counts_too(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "4:memory:/a\n")
    kernel.write("cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert kernel.kills == 2


def test_where_no_group_counts_the_machine_does(kernel: Kernel) -> None:
    assert kernel.kills == 5
    kernel.write("proc/vmstat", "nothing\n")
    assert kernel.kills == 0


def test_of_this_machine() -> None:
    limit = memory_limit_bytes()
    assert limit is None or limit > 1 << 20
    assert oom_kills() >= 0
