"""Grafts on real file systems: blocks shared where they can be, holes kept, full disks survived, memory flat."""

import filecmp
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.extract import extract, strip
from orchestrator.gguf.graft import graft
from orchestrator.gguf.model import open_model
from tests import REPOSITORY
from tests.support.tiny import head_only, large

pytestmark = pytest.mark.integration
MIB = 1 << 20
GIB = 1 << 30
MAKERS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
DISK_BYTES = 512 * MIB
# More than half of a disk: two that share nothing do not fit.
BASE_BYTES = 280 * MIB

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a new file system of a kind, until the test ends."""
    points: list[Path] = []

    def make(kind: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("mounting a file system takes root")
        point, image = tmp_path / kind, tmp_path / f"{kind}.image"
        point.mkdir()
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(point)]
        else:
            if shutil.which(MAKERS[kind][0]) is None:
                pytest.skip(f"{MAKERS[kind][0]} is not installed (Debian: {kind}progs or {kind}-progs)")
            with image.open("wb") as file:
                file.truncate(DISK_BYTES)
            subprocess.run([*MAKERS[kind], str(image)], check=True, capture_output=True)
            command = ["mount", "-o", "loop", str(image), str(point)]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"{kind} cannot be mounted here: {mounted.stderr.strip()}")
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", str(point)], check=True)


def free_bytes(folder: Path) -> int:
    os.sync()
    stat = os.statvfs(folder)
    return stat.f_bfree * stat.f_frsize


def require_same_data(base: Path, grafted: Path) -> None:
    """The base's data section stands in the graft as it is."""
    one, other = (open_model(path).header for path in (base, grafted))
    left = max(tensor.offset + tensor.size_bytes for tensor in one.tensors.values())
    with base.open("rb") as a, grafted.open("rb") as b:
        a.seek(one.data_offset)
        b.seek(other.data_offset)
        while left > 0:
            step = min(left, MIB)
            assert a.read(step) == b.read(step)
            left -= step


@pytest.mark.parametrize("kind", MAKERS)
def test_blocks_are_shared(mount: Mount, kind: str) -> None:
    folder = mount(kind)
    base = large(BASE_BYTES).write_filled(folder / "base.gguf")
    donor = head_only().write(folder / "donor.gguf")
    before = free_bytes(folder)
    assert before < BASE_BYTES, "a copy does not fit"
    graft(base, donor, folder / "grafted.gguf")
    assert before - free_bytes(folder) < 8 * MIB
    require_same_data(base, folder / "grafted.gguf")
    strip(folder / "grafted.gguf", folder / "stripped.gguf")
    extract(folder / "grafted.gguf", folder / "drafter.gguf", kind="drafter")
    plan = graft(base, donor, folder / "shards.gguf", layout="shard")
    again = graft(folder / "grafted.gguf", donor, folder / "again.gguf")
    assert again.nothing_to_do and len(plan.outputs) == 2
    assert before - free_bytes(folder) < 24 * MIB
    assert filecmp.cmp(folder / "stripped.gguf", base, shallow=False)


@pytest.mark.parametrize("kind", [*MAKERS, "here"])
def test_a_sparse_model_of_40_gb_costs_nothing(mount: Mount, tmp_path: Path, kind: str) -> None:
    folder = tmp_path if kind == "here" else mount(kind)
    base = large(40 * 10**9).write_sparse(folder / "base.gguf")
    donor = head_only().write(folder / "donor.gguf")
    began = time.monotonic()
    graft(base, donor, folder / "grafted.gguf")
    assert time.monotonic() - began < 2.0
    stat = (folder / "grafted.gguf").stat()
    assert stat.st_size > 40 * 10**9 and stat.st_blocks * 512 < 4 * MIB
    assert len(open_model(folder / "grafted.gguf").tensors) == len(open_model(base).tensors) + 14


def test_a_full_disk_is_told_before_anything_is_written(mount: Mount) -> None:
    folder = mount("tmpfs")
    base = large(14 * MIB).write_filled(folder / "base.gguf")
    donor = head_only().write(folder / "donor.gguf")
    with pytest.raises(SlipstreamError) as caught:
        graft(base, donor, folder / "grafted.gguf")
    assert caught.value.code is Code.DISK_FULL
    needed, free = (caught.value.details[key] for key in ("needed_bytes", "free_bytes"))
    assert 14 * MIB < needed < 15 * MIB and free < 10 * MIB
    assert sorted(path.name for path in folder.iterdir()) == ["base.gguf", "donor.gguf"]


def test_a_disk_that_fills_up_meanwhile_is_survived(mount: Mount) -> None:
    folder = mount("tmpfs")
    base = large(9 * MIB).write_filled(folder / "base.gguf")
    donor = head_only().write(folder / "donor.gguf")

    def fill(done: int, total: int) -> None:
        with (folder / "filler").open("ab") as file:
            file.write(bytes(min(12 * MIB, max(0, free_bytes(folder) - 64 * 1024))))

    with pytest.raises(SlipstreamError) as caught:
        graft(base, donor, folder / "grafted.gguf", progress=fill)
    assert caught.value.code is Code.DISK_FULL
    assert sorted(path.name for path in folder.iterdir()) == ["base.gguf", "donor.gguf", "filler"]
    (folder / "filler").unlink()
    graft(base, donor, folder / "grafted.gguf")
    require_same_data(base, folder / "grafted.gguf")


def test_a_sparse_model_fits_on_a_disk_smaller_than_itself(mount: Mount) -> None:
    folder = mount("tmpfs")
    base = large(10 * GIB).write_sparse(folder / "base.gguf")
    graft(base, head_only().write(folder / "donor.gguf"), folder / "grafted.gguf")
    assert (folder / "grafted.gguf").stat().st_size > 10 * GIB


def test_from_one_file_system_to_another(mount: Mount, tmp_path: Path) -> None:
    base = large(9 * MIB).write_filled(mount("tmpfs") / "base.gguf")
    graft(base, head_only().write(tmp_path / "donor.gguf"), tmp_path / "grafted.gguf")
    require_same_data(base, tmp_path / "grafted.gguf")


# Not ru_maxrss, in which a child begins with what its parent had.
MEASURED = """
import re, sys
from pathlib import Path
from orchestrator.gguf.graft import graft
graft(*map(Path, sys.argv[1:4]), hash_base=True)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@contextmanager
def removed(*paths: Path) -> Iterator[None]:
    yield
    for path in paths:
        path.unlink()


def test_memory_stays_flat(tmp_path: Path) -> None:
    donor = head_only().write(tmp_path / "donor.gguf")
    peaks: list[int] = []
    for size in (4 * MIB, 400 * MIB):
        base, out = large(size).write_filled(tmp_path / "base.gguf"), tmp_path / "grafted.gguf"
        with removed(base, out):
            command = [sys.executable, "-c", MEASURED, str(base), str(donor), str(out)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)
            peaks.append(int(done.stdout) * 1024)
    assert max(peaks) < 200 * MIB
    assert peaks[1] - peaks[0] < 16 * MIB, peaks
