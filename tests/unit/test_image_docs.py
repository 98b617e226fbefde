"""docs/images.md has what docker/accelerators.toml and docker/Dockerfile have."""

import re
import tomllib

from llamacpp.variants import ACCELERATORS_FILE
from tests import REPOSITORY

DOCS = (REPOSITORY / "docs/images.md").read_text()
DOCKERFILE = (REPOSITORY / "docker/Dockerfile").read_text()
PREDEFINED = {"SOURCE_DATE_EPOCH"}


def rows(header: str) -> list[list[str]]:
    """The cells of the table with this header, without its two first lines."""
    table = DOCS.partition(f"\n{header}\n")[2].partition("\n\n")[0]
    assert table, f"no table with the header {header}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_every_architecture_has_its_cards() -> None:
    data = tomllib.loads(ACCELERATORS_FILE.read_text())
    wanted = [[name, f"`{each}`"] for name, table in data.items() for each in table["architectures"]]
    found = rows("| variant | architecture | cards |")
    assert [row[:2] for row in found] == wanted
    assert all(row[2] for row in found)


def test_every_platform_is_named() -> None:
    data = tomllib.loads(ACCELERATORS_FILE.read_text())
    header = "| variant | base | platforms | beside llama-server and its libraries |"
    for variant, _, platforms, _ in rows(header):
        accelerator = variant.strip("`").partition("-")[0]
        wanted = [platform.partition("/")[2] for platform in data[accelerator]["platforms"]]
        assert re.findall(r"\b(?:amd|arm)64\b", platforms) == wanted


def test_every_argument_is_explained_with_its_default() -> None:
    declared = re.findall(r"^ARG (\w+)(?:=(.*))?$", DOCKERFILE, re.MULTILINE)
    # Stages name again what is declared before them; a default stands with one of the two.
    defaults: dict[str, str] = {}
    for name, default in declared:
        defaults[name] = defaults.get(name) or default
    table = {name.strip("`"): default.strip("`") for name, default, _ in rows("| argument | default | meaning |")}
    assert table == {name: default for name, default in defaults.items() if name not in PREDEFINED}
