"""docs/architecture.md says which room may import from which; the imports are held to it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import REPOSITORY

PACKAGE = REPOSITORY / "orchestrator"
EVERYTHING_BELOW = "everything below"
ROW = re.compile(r"^\| `(\w+)` \| .*? \| (.*?) ?\|$", re.M)


def rooms() -> dict[str, set[str]]:
    """Allowed imports by room, in the order of the table, top floor first."""
    rows = ROW.findall((REPOSITORY / "docs" / "architecture.md").read_text())
    names = [name for name, _ in rows]
    below = {name: set(names[i + 1 :]) for i, name in enumerate(names)}
    return {name: below[name] if may == EVERYTHING_BELOW else set(re.findall(r"`(\w+)`", may)) for name, may in rows}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of every import from the package, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide their room"
            names = [
                f"{node.module}.{a.name}" if node.module == "orchestrator" else node.module or "" for a in node.names
            ]
        for name in names:
            parts = name.split(".")
            if parts[0] == "orchestrator" and len(parts) > 1 and parts[1] != "__version__":
                yield getattr(node, "lineno", 0), parts[1]


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_every_room_has_its_row() -> None:
    assert {room_of(path) for path in sources()} <= set(rooms())


def test_a_row_allows_only_what_lies_below_it() -> None:
    table = rooms()
    order = list(table)
    upward = [(room, other) for room, may in table.items() for other in may if order.index(other) <= order.index(room)]
    assert upward == []


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_its_row_allows(path: Path) -> None:
    room = room_of(path)
    allowed = rooms()[room] | {room}
    strangers = [f"line {line}: {other}" for line, other in imported_rooms(path) if other not in allowed]
    assert strangers == []


def test_design_and_document_agree_on_the_data_plane() -> None:
    assert "api" not in rooms()["gateway"] and "settings" not in rooms()["servers"]


def test_ground_floor_modules_need_no_web_framework() -> None:
    for path in sources():
        if room_of(path) in ("errors", "schemas", "catalog", "client"):
            assert not re.search(r"^(from|import) (fastapi|starlette|uvicorn)", path.read_text(), re.M)
