"""What it costs to look into a header with 300,000 tokens and as many merges: `inspect` against gguf-py's reader."""

import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.report import ratios, spread, table
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Items, Keys, gguf

_ENTRIES = 300_000
# gguf-py takes half a minute a round.
_MOST_ROUNDS = 3
_MIB = 1 << 20


def run(server: Path, rounds: int) -> None:
    """Print seconds and resident memory of both, each in a process of its own."""
    rounds = min(rounds, _MOST_ROUNDS)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        path.write_bytes(_vocabulary())
        size_bytes = path.stat().st_size
        for _ in range(rounds):
            for name in _READERS:
                command = [sys.executable, "-m", "bench.inspect", name, str(path)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[name].append(json.loads(done.stdout))
    seconds = {name: [one["seconds"] for one in found[name]] for name in _READERS}
    rows = [
        [
            name,
            spread(seconds[name], 3),
            f"{median(one['rss_bytes'] for one in found[name]) / _MIB:.0f}",
            ratios(seconds["gguf-py"], seconds[name]),
        ]
        for name in _READERS
    ]
    title = f"a header of {size_bytes / _MIB:.1f} MiB with {_ENTRIES:,} tokens and merges, {rounds} rounds"
    table(title, ["reader", "seconds", "resident MiB", "times faster than gguf-py, by round"], rows)


def _vocabulary() -> bytes:
    tokens = [f"Ġtoken{number:x}" for number in range(_ENTRIES)]
    keys: Keys = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": 32,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": Items(ValueType.STRING, tokens),
        "tokenizer.ggml.token_type": Items(ValueType.INT32, [1] * _ENTRIES),
        "tokenizer.ggml.merges": Items(ValueType.STRING, [f"Ġtok en{number:x}" for number in range(_ENTRIES)]),
    }
    return gguf(keys, {"token_embd.weight": ((32, _ENTRIES), TensorType.Q4_0)})


def _inspect() -> Callable[[Path], Any]:
    from orchestrator.gguf.inspect import inspect_file

    return inspect_file


def _header() -> Callable[[Path], Any]:
    from orchestrator.gguf.reader import read_file

    return read_file


def _gguf_py() -> Callable[[Path], Any]:
    from gguf import GGUFReader

    return GGUFReader


_READERS = {"slipstream inspect": _inspect, "its reader alone": _header, "gguf-py": _gguf_py}


def _measure(name: str, path: Path) -> None:
    read = _READERS[name]()
    begun = time.perf_counter()
    kept = read(path)
    seconds = time.perf_counter() - begun
    assert kept is not None
    # getrusage would tell the parent's peak too, which outlives exec.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    print(json.dumps({"seconds": seconds, "rss_bytes": int(peak[1]) * 1024}))


if __name__ == "__main__":
    _measure(sys.argv[1], Path(sys.argv[2]))
