"""A model file that the fake server plays: a toy GGUF with a script behind its last tensor, where no reader looks."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.fake_server import SCRIPT_MARK
from tests.toys import write_mtp


def write_script(path: Path, script: dict[str, Any]) -> None:
    """Write the file whole: a server that starts meanwhile reads the earlier one or this one."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(_toy() + SCRIPT_MARK + json.dumps(script).encode())
    beside.replace(path)


@cache
def _toy() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.gguf"
        write_mtp(path)
        return path.read_bytes()
