""".env.example against the compose files: every variable that one of them asks for is explained, and no other."""

import re
from pathlib import Path

import pytest

from tests import REPOSITORY

FILES = (
    *sorted(REPOSITORY.glob("compose*.yaml")),
    *(path for path in sorted((REPOSITORY / "docker").glob("*.yaml")) if not path.name.startswith("hosts.")),
)
# What compose itself reads.
OF_COMPOSE = {"COMPOSE_FILE", "COMPOSE_PROFILES"}
EXAMPLE = (REPOSITORY / ".env.example").read_text()
LISTED = re.findall(r"^#([A-Z_]+)=(.*)$", EXAMPLE, re.M)
# Of the images that are named after the accelerator .env.example shows those of the default one.
WITH_DEFAULT = re.compile(r"\$\{([A-Z_]+):-([^${}]*)\}")


def text_of(path: Path) -> str:
    """A file without its comments."""
    return re.sub(r"(^|\s)#.*", "", path.read_text())


def asked_for(path: Path) -> set[str]:
    text = text_of(path)
    # A key in capitals without a value takes that of the variable.
    return set(re.findall(r"\$\{([A-Z_]+)", text)) | set(re.findall(r"^ +([A-Z_]+):$", text, re.M))


def test_every_variable_of_the_compose_files_is_listed_and_no_other() -> None:
    asked = {name for path in FILES for name in asked_for(path)}
    assert {"ACCELERATOR", "RENDER_GID", "CPU_BASE", "DOCKER_GID", "METRICS_KEY_FILE"} < asked
    assert asked | OF_COMPOSE == {name for name, _ in LISTED}


def test_every_line_is_a_comment_or_switched_off() -> None:
    assert [line for line in EXAMPLE.splitlines() if line and not line.startswith("#")] == []
    # A block begins with what explains it.
    assert [block for block in EXAMPLE.split("\n\n") if not re.match(r"# \S", block)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_values_listed_are_the_defaults(path: Path) -> None:
    listed = dict(LISTED)
    other = {"slipstream:cuda", "slipstream-llama-server:cuda", "cuda", "rocm-gfx906"}
    wrong = [
        (name, default)
        for name, default in WITH_DEFAULT.findall(text_of(path))
        if listed[name] != default and not (name in ("VARIANT", "SLIPSTREAM_IMAGE") and default in other)
    ]
    # Where nothing is built, any folder serves; the image of the orchestrator alone has a name of its own.
    allowed = {("LLAMA_SERVER_DIR", "docker"), ("SLIPSTREAM_IMAGE", "slipstream:orchestrator")}
    assert set(wrong) <= allowed


def test_the_bases_listed_are_those_of_the_dockerfile() -> None:
    arguments = dict(re.findall(r"^ARG (\w+_BASE)=(.*)$", (REPOSITORY / "docker" / "Dockerfile").read_text(), re.M))
    assert len(arguments) == 5
    assert {name: value for name, value in LISTED if name.endswith("_BASE")} == arguments


def test_the_files_that_compose_file_names_are_there() -> None:
    named = [value for name, value in LISTED if name == "COMPOSE_FILE"]
    assert len(named) == 3
    for value in named:
        assert all((REPOSITORY / part).is_file() for part in value.split(":")), value
