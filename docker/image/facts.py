"""What an image is called, what it says about itself, and what it is built from."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from llamacpp.pin import ROOT, Pin, PinError, Series, load_pin, load_series
from llamacpp.variants import Variant, accelerators, load_variant

DOCKERFILE = ROOT / "docker/Dockerfile"
# Beside the variants: the product without a server, for servers in containers of their own.
ORCHESTRATOR = "orchestrator"
# Repository, and target of the Dockerfile.
KINDS = {"llama-server": "slipstream-llama-server", "slipstream": "slipstream"}
LABEL = "org.opencontainers.image."


@dataclass(frozen=True)
class Image:
    """One image: a kind (a target of the Dockerfile) of a variant; `name` stands in its tags."""

    kind: str
    name: str
    variant: Variant
    pin: Pin
    series: Series

    @property
    def repository(self) -> str:
        return KINDS[self.kind]

    @property
    def local(self) -> str:
        """What it is called on this engine, as compose.yaml has it."""
        return f"{self.repository}:{self.name}"

    @property
    def stem(self) -> str:
        """The pin and the patch set, as tags name them: b11434-p54e632fc."""
        return f"{self.pin.tag}-p{self.series.digest[:8]}"

    @property
    def tags(self) -> tuple[str, str]:
        return f"{self.stem}-{self.name}", f"latest-{self.name}"

    @property
    def version(self) -> str:
        return product_version() if self.kind == "slipstream" else self.stem

    @property
    def base_argument(self) -> str:
        """The Dockerfile's argument for the image that this one stands on."""
        return f"{self.variant.accelerator.upper()}_BASE"


def images_of(names: list[str], kind: str = "all") -> list[Image]:
    """The images of variants, those that hold others last. Raises PinError."""
    pin = load_pin()
    made = []
    for name in sorted(names, key=lambda name: name != ORCHESTRATOR):
        try:
            variant = load_variant("cpu" if name == ORCHESTRATOR else name)
        except PinError as error:
            if name.partition("-")[0] in accelerators():
                raise
            raise PinError(f"{error}, and {ORCHESTRATOR} for the orchestrator without a server") from error
        kinds = [each for each in KINDS if kind in ("all", each)]
        if name == ORCHESTRATOR:
            if kind == "llama-server":
                raise PinError(f"{ORCHESTRATOR} is the product without a server: it has no image of the kind {kind}")
            kinds = ["slipstream"]
        series = load_series(variant.patches)
        made += [Image(k, name if name == ORCHESTRATOR else variant.name, variant, pin, series) for k in kinds]
    return list({image.local: image for image in made}.values())


@cache
def product_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


@dataclass(frozen=True)
class Commit:
    """Where the images' content comes from. `revision` ends in -dirty where files differ from the commit."""

    revision: str
    created_seconds: int | None
    source: str
    changed: tuple[str, ...] = ()

    @property
    def created(self) -> str:
        """Time of the commit, so that one commit gives one date."""
        if self.created_seconds is None:
            return ""
        return datetime.fromtimestamp(self.created_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def read_commit(source: str = "") -> Commit:
    """The commit of this tree; `unknown` outside of git. SOURCE_DATE_EPOCH wins over the commit's own time."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch and not epoch.isdecimal():
        raise PinError(f"SOURCE_DATE_EPOCH={epoch!r}, expected seconds since 1970")
    seconds = int(epoch) if epoch else None
    revision, _, time = (_git("log", "-1", "--format=%H %ct") or "").partition(" ")
    # An archive that lies within somebody else's repository is no part of it.
    if not revision or Path(_git("rev-parse", "--show-toplevel") or "/").resolve() != ROOT:
        return Commit("unknown", seconds, source)
    changed = tuple(line[3:] for line in (_git("status", "--porcelain") or "").splitlines())
    source = source or web_address(_git("remote", "get-url", "origin") or "")
    return Commit(f"{revision}-dirty" if changed else revision, seconds or int(time), source, changed)


def web_address(remote: str) -> str:
    """A git remote as the address of a page, without the credentials it may hold; "" where it is none."""
    if match := re.fullmatch(r"(?:ssh://)?[\w.-]+@([\w.-]+)[:/](.+?)(?:\.git)?/?", remote):
        return f"https://{match[1]}/{match[2]}"
    parts = urlsplit(remote)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = parts.hostname + (f":{parts.port}" if parts.port else "")
    return f"https://{host}{parts.path.removesuffix('/').removesuffix('.git')}"


@cache
def settings() -> dict[str, str]:
    """What compose takes too: the environment, and .env for what it does not set."""
    found: dict[str, str] = {}
    file = ROOT / ".env"
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            found[name] = value.partition(" #")[0].strip().strip("\"'")
    return found | dict(os.environ)


def base_name(argument: str) -> str:
    """The image that an argument of the Dockerfile names: from the settings, else the Dockerfile's own."""
    if named := settings().get(argument):
        return named
    match = re.search(rf"^ARG {argument}=(\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise PinError(f"{DOCKERFILE} has no 'ARG {argument}=IMAGE'; name the image with {argument}=IMAGE")
    return match[1]


def labels(image: Image, commit: Commit, base: str, base_digest: str) -> dict[str, str]:
    """OCI's labels that tell one build from another; the Dockerfile adds those that never change."""
    facts = {
        "version": image.version,
        "revision": commit.revision,
        "created": commit.created,
        "source": commit.source,
        "base.name": base,
        "base.digest": base_digest,
    }
    return {LABEL + name: value for name, value in facts.items() if value}


def kinds_and_variants() -> str:
    return ", ".join([*accelerators(), ORCHESTRATOR])
