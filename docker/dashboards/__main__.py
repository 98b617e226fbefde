"""`make dashboards`: writes docker/grafana/dashboards/*.json; with --check it fails if they are stale."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from dashboards.files import DASHBOARDS, FOLDER, render


def stale(folder: Path) -> list[Path]:
    """Files that are missing, that differ from what the generator makes, or that no dashboard owns."""
    wanted = {folder / f"{dashboard.uid}.json": render(dashboard) for dashboard in DASHBOARDS}
    found = set(folder.glob("*.json"))
    return sorted(p for p in wanted.keys() | found if p not in wanted or p not in found or p.read_text() != wanted[p])


def write(folder: Path) -> None:
    """Make the folder hold the dashboards and no other file of theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        replace(folder / f"{dashboard.uid}.json", render(dashboard))
    for path in stale(folder):
        path.unlink()


def replace(path: Path, text: str) -> None:
    """Written beside and renamed: Grafana may be reading."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def main() -> int:
    parser = argparse.ArgumentParser(prog="dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the files are not what would be written")
    if not parser.parse_args().check:
        write(FOLDER)
        return 0
    old = stale(FOLDER)
    if old:
        print(f"error: stale: {', '.join(p.name for p in old)}; write them with: make dashboards", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
