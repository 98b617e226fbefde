"""llama-server's own router mode: no model of its own, one llama-server a model, started on demand."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.processes import running

Flags = Mapping[str, str | int | bool]


@contextmanager
def running_router(
    server: Path, models: Mapping[str, Path], flags: Flags, folder: Path, models_max: int
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The router and its address. `flags` are those of every model: in the preset, as its README recommends."""
    preset = folder / "router.ini"
    common = [f"{name} = {str(value).lower()}" for name, value in flags.items()]
    sections = [line for name, path in models.items() for line in (f"[{name}]", f"model = {path}")]
    preset.write_text("\n".join(["[*]", *common, *sections, ""]))
    argv = [str(server), "--models-preset", str(preset), "--models-max", str(models_max)]
    argv += ["--host", "127.0.0.1", "--port", "0"]
    with running(argv, folder / "router.log") as started:
        yield started


def loads_in(folder: Path) -> int:
    """How often it started a server."""
    return (folder / "router.log").read_text(errors="replace").count("load: spawning server instance with name=")
