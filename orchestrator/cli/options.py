"""Options that several commands share, and what their values become."""

import re
from typing import Annotated

import typer

from orchestrator.gguf.known import SPEC_TYPES
from orchestrator.schemas import FlagValue

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_SWITCH = {"true": True, "false": False}

Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, and nothing else there.")]
Url = Annotated[
    str | None,
    typer.Option("--url", help="Address of the orchestrator; SLIPSTREAM_URL, else http://127.0.0.1:8080."),
]
Model = Annotated[str, typer.Argument(help="Name or alias of a model.")]
Flags = Annotated[
    list[str] | None,
    typer.Option(
        "--flag", metavar="NAME=VALUE", help="llama-server flag; repeat it for more. Replaces the set given earlier."
    ),
]
Drain = Annotated[
    float | None,
    typer.Option("--drain", min=0, max=3600, metavar="SECONDS", help="Time that running answers get to end."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would happen; touch nothing.")]


def parse_types(given: list[str] | None) -> tuple[str, ...]:
    """`["draft-mtp,ngram-mod"]`, as llama-server takes them, or one by one; a usage error names what is no type."""
    types = tuple(name for text in given or () for name in text.split(","))
    for name in types:
        if name not in SPEC_TYPES:
            raise typer.BadParameter(f"{name!r} is no speculative type; llama-server has {', '.join(SPEC_TYPES)}")
    return types


def parse_flags(given: list[str] | None) -> dict[str, FlagValue] | None:
    """`["ctx-size=4096", "swa-full=true"]` as flags; None when none was given. A usage error names what is no pair."""
    if not given:
        return None
    flags: dict[str, FlagValue] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE, such as ctx-size=4096 or swa-full=true")
        if name in flags:
            raise typer.BadParameter(f"the flag {name!r} is given twice")
        flags[name] = _value(value)
    return flags


def _value(text: str) -> FlagValue:
    if text in _SWITCH:
        return _SWITCH[text]
    if (number := _NUMBER.fullmatch(text)) is None:
        return text
    value = float(text) if number[2] else int(text)
    # A number that would be written differently from what was typed stays as it was typed.
    return value if str(value) == text else text
