"""Grafts: ours against `cp` of the base and against gguf-py, on this file system and on one that shares blocks."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.report import ratios, spread, table
from orchestrator.settings import Settings
from tests import REPOSITORY
from tests.support.tiny import F32, WIDTH, Tiny, head_only

_SPARSE_BYTES = 40 * 10**9
_REAL_BYTES = 2 * 10**9
_DISK_BYTES = 6 * 10**9
_TENSORS = 256
# They are half a minute each, and the disk belongs to others too.
_MOST_ROUNDS = 5
_TIMEOUT_SECONDS = 600.0

_MEASURED = """
import json, re, sys, time
from pathlib import Path
base, donor, out = map(Path, sys.argv[1:])
{imports}
began = time.perf_counter()
{work}
seconds = time.perf_counter() - began
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(json.dumps({{"seconds": seconds, "peak": int(peak) * 1024}}))
"""
_OURS = _MEASURED.format(imports="from orchestrator.gguf.graft import graft", work="graft(base, donor, out)")
# What a graft would take if it left syncing to the kernel, as `cp` does.
_OURS_UNSYNCED = _MEASURED.format(
    imports="""import os
from orchestrator.gguf import copying
from orchestrator.gguf.graft import graft
os.fsync = lambda fd: None
copying._start_writing = lambda *where: None""",
    work="graft(base, donor, out)",
)
# Without regard for what it does to keys: read both, write all tensors, as scripts in the field do.
_GGUF_PY = _MEASURED.format(
    imports="from gguf import GGUFReader, GGUFWriter, GGUFValueType",
    work="""reader, head = GGUFReader(base), GGUFReader(donor)
arch = reader.fields["general.architecture"].contents()
writer = GGUFWriter(out, arch)
for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name in ("general.architecture", f"{arch}.block_count"):
        continue
    is_array = field.types[0] == GGUFValueType.ARRAY
    writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if is_array else None)
writer.add_block_count(3)
writer.add_nextn_predict_layers(1)
for tensor in (*reader.tensors, *head.tensors):
    name = tensor.name.replace("blk.7.", "blk.2.")
    writer.add_tensor(name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()""",
)


@dataclass(frozen=True)
class Files:
    """What is grafted, and where the results go."""

    base: Path
    donor: Path
    out: Path

    def program(self, text: str) -> dict[str, float]:
        """Seconds and peak resident bytes of a Python program, without its imports."""
        command = [sys.executable, "-c", text, str(self.base), str(self.donor), str(self.out)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
        if done.returncode:
            raise RuntimeError(f"a program failed: {done.stderr.strip()[-1000:]}")
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def copy(self, *, sync: bool) -> dict[str, float]:
        """The same of `cp`, and of syncing its result if wanted, as a graft does."""
        script = """began=$EPOCHREALTIME; cp "$1" "$2"; ((! $3)) || sync "$2"; now=$EPOCHREALTIME
            echo $((${now/./} - ${began/./}))"""
        command = ["bash", "-c", script, "bash", str(self.base), str(self.out), str(int(sync))]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS)
        return {"seconds": int(done.stdout) / 1e6}


_Ways = Mapping[str, Callable[[Files], dict[str, float]]]
_CP: _Ways = {"cp and sync": lambda files: files.copy(sync=True), "cp alone": lambda files: files.copy(sync=False)}
_GRAFT: _Ways = {
    "graft, synced": lambda files: files.program(_OURS),
    "graft, not synced": lambda files: files.program(_OURS_UNSYNCED),
}
_PY: _Ways = {"gguf-py, not synced": lambda files: files.program(_GGUF_PY)}


def run(server: Path, rounds: int) -> None:
    """Print wall time and peak memory of every way, in turns. `server` is not used."""
    rounds = min(rounds, _MOST_ROUNDS)
    cache = Settings().cache
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-graft-", dir=cache) as name:
        folder = Path(name)
        _compare("a real 2 GB file, here", _files(folder, _REAL_BYTES, sparse=False), {**_CP, **_GRAFT, **_PY}, rounds)
        _compare("a sparse 40 GB file, here", _files(folder, _SPARSE_BYTES, sparse=True), {**_CP, **_GRAFT}, rounds)
        with _sharing_disk(folder) as disk:
            if disk is None:
                print("\nxfs cannot be mounted here (it takes root and mkfs.xfs): nothing measured with shared blocks")
                return
            for what, size, sparse in (("real 2 GB", _REAL_BYTES, False), ("sparse 40 GB", _SPARSE_BYTES, True)):
                _compare(f"a {what} file, xfs", _files(disk, size, sparse=sparse), {**_CP, **_GRAFT}, rounds)


def _files(folder: Path, size_bytes: int, *, sparse: bool) -> Files:
    """A base of so many bytes, in place of the one before."""
    rows = size_bytes // _TENSORS // (4 * WIDTH)
    model = Tiny(more_tensors={f"large.{i}.weight": ((WIDTH, rows), F32) for i in range(_TENSORS)})
    path = folder / "base.gguf"
    base = model.write_sparse(path) if sparse else model.write_filled(path)
    return Files(base, head_only().write(folder / "donor.gguf"), folder / "out.gguf")


def _compare(what: str, files: Files, ways: _Ways, rounds: int) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    peaks: dict[str, list[float]] = defaultdict(list)
    names = list(ways)
    for turn in range(rounds + 1):
        # What a file before has left for the disk to do meets each of them as often.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            files.out.unlink(missing_ok=True)
            os.sync()
            found = ways[name](files)
            # The first turn brings everything into memory.
            if turn:
                seconds[name].append(found["seconds"])
                peaks[name].append(found.get("peak", 0.0))
    files.out.unlink()
    synced, unsynced = (seconds[name] for name in _CP)
    rows = [
        [
            *(name, spread(values, 3), ratios(values, synced), ratios(values, unsynced)),
            f"{median(peaks[name]) / (1 << 20):.0f}" if any(peaks[name]) else "-",
        ]
        for name, values in ((name, seconds[name]) for name in names)
    ]
    header = ["way", "wall, s", "ratio to cp and sync, by round", "ratio to cp alone, by round", "peak memory, MiB"]
    table(f"graft of {what}, {rounds} rounds", header, rows)


@contextmanager
def _sharing_disk(folder: Path) -> Iterator[Path | None]:
    """An xfs in a file; None where it cannot be made."""
    image, point = folder / "xfs.image", folder / "xfs"
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        yield None
        return
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    point.mkdir()
    if subprocess.run(["mount", "-o", "loop", str(image), str(point)]).returncode:
        yield None
        return
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)
