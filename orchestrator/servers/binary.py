"""The llama-server binary: where it is, what it is called, which flags it has."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.flags import FlagTable, parse_help

_HELP_TIMEOUT_SECONDS = 30.0


def find_binary(configured: Path | None, cache: Path) -> Path:
    """The configured binary, else the patched one that `make server` built or asked for last."""
    if configured is not None:
        if not (configured.is_file() and os.access(configured, os.X_OK)):
            raise SlipstreamError(Code.MISCONFIGURED, f"SLIPSTREAM_LLAMA_SERVER={configured} is not a program")
        # Servers run in a folder of their own, where a relative path would lead nowhere.
        return configured.absolute()
    built = [p for p in cache.glob("llama-server/*/llama-server") if os.access(p, os.X_OK) and _is_patched(p)]
    if not built:
        raise SlipstreamError(
            Code.MISCONFIGURED,
            f"there is no patched llama-server under {cache / 'llama-server'}",
            hint="run `make server`, or set SLIPSTREAM_LLAMA_SERVER",
        )
    return max(built, key=lambda p: p.with_name("build.json").stat().st_mtime)


def _is_patched(server: Path) -> bool:
    """Whether docker/build-llama-server says so; a server of unknown making is not taken unasked."""
    try:
        return bool(json.loads(server.with_name("build.json").read_text())["patches"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def read_flags(binary: Path, env: dict[str, str]) -> FlagTable:
    """Ask the binary itself: `--version` and `--help`."""
    version = await output(binary, "--version", env)
    return table_of(str(binary), version, await output(binary, "--help", env))


def table_of(program: str, version: str, help_text: str) -> FlagTable:
    """Flags from what a program printed; SlipstreamError misconfigured when it is no llama-server."""
    if not version.strip():
        raise SlipstreamError(Code.MISCONFIGURED, f"{program} --version printed nothing: it is not a llama-server")
    lines = version.strip().splitlines()
    # A backend may speak before the program does.
    told = next((line for line in lines if line.startswith("version: ")), lines[0])
    table = parse_help(help_text, told.removeprefix("version: "))
    if not table.has("model"):
        raise SlipstreamError(Code.MISCONFIGURED, f"{program} --help lists no --model: it is not a llama-server")
    return table


async def output(binary: Path, argument: str, env: dict[str, str]) -> str:
    """What it prints; SlipstreamError misconfigured when it cannot be run, hangs, or fails."""
    try:
        status, said = await run(binary, argument, env=env, timeout_seconds=_HELP_TIMEOUT_SECONDS)
    except TimeoutError:
        raise SlipstreamError(
            Code.MISCONFIGURED, f"{binary} {argument} did not end within {_HELP_TIMEOUT_SECONDS:.0f} s"
        ) from None
    except OSError as e:
        raise SlipstreamError(Code.MISCONFIGURED, f"{binary} cannot be run: {e.strerror}") from e
    if status != 0:
        raise SlipstreamError(Code.MISCONFIGURED, f"{binary} {argument} ended with {status}: {said.strip()[-300:]}")
    return said


async def run(
    program: Path | str, argument: Path | str, *, env: Mapping[str, str], timeout_seconds: float
) -> tuple[int, str]:
    """Exit status of a program that only says something, and what it said on both streams.

    Raises OSError when it cannot be run, TimeoutError (an OSError too) once one that hangs has been ended.
    """
    process = await asyncio.create_subprocess_exec(
        program, argument, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, env=env,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_seconds):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return await process.wait(), out.decode(errors="replace")
