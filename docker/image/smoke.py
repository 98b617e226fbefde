"""Try an image out: what it says it is, and one answer from a server on the CPU."""

from __future__ import annotations

import json
import secrets
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image.engine import ask
from image.facts import ORCHESTRATOR, Image, images_of, product_version
from llamacpp.console import say
from llamacpp.pin import ROOT, PinError

SERVER = "/opt/llama-server/llama-server"
HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
MODEL = "/etc/slipstream/models/smoke.gguf"
MODEL_FILE = """\
name: smoke
source: {path: smoke.gguf}
"""
# So that nobody waits for the next look; what it looks at is the image's own.
HEALTH = ("--health-interval", "1s", "--health-start-period", "1s")
READY_SECONDS = 120.0
POLL_SECONDS = 0.25
ANSWER_SECONDS = 120.0
LOG_LINES = "15"


class Wrong(Exception):
    """What is wrong with an image."""


@dataclass(frozen=True)
class Tried:
    """An image under trial. `expected` is what it should be."""

    image: str
    expected: Image
    model: Path
    drafts: bool

    def run(self, *command: str, entrypoint: str = "") -> str:
        """What a command in the image prints; `command` goes to the image's own entry point unless one is named."""
        chosen = ("--entrypoint", entrypoint) if entrypoint else ()
        return _docker("run", "--rm", *self.hardened, "--network", "none", *chosen, self.image, *command)

    @property
    def hardened(self) -> tuple[str, ...]:
        """How compose.yaml runs the product, and the Docker driver servers: these need no temporary folder."""
        return (*HARDENED, "--tmpfs", "/tmp") if self.is_product else HARDENED

    @property
    def has_server(self) -> bool:
        return self.expected.name != ORCHESTRATOR

    @property
    def is_product(self) -> bool:
        return self.expected.kind == "slipstream"


def _docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS)
    output = done.stdout + done.stderr
    if done.returncode:
        raise Wrong(f"docker {' '.join(arguments)} ended with exit status {done.returncode}: {output.strip()[-1000:]}")
    return output


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Wrong(f"{what} is {found!r}, expected {expected!r}")


def says_its_version(tried: Tried) -> str:
    """Product and server name their versions, the server its patch set."""
    said = []
    if tried.is_product:
        said.append(tried.run("--version").strip())
        if product_version() not in said[-1]:
            raise Wrong(f"it calls itself {said[-1]!r}, expected version {product_version()}")
    if tried.has_server:
        expected = f"build {tried.expected.pin.build_number}, commit {tried.expected.series.stamp(tried.expected.pin)}"
        output = tried.run("--version", entrypoint=SERVER)
        if expected not in output:
            raise Wrong(f"llama-server says {output.strip()!r}, expected {expected!r}")
        said.append(f"llama-server {expected}")
    return "; ".join(said)


def has_help(tried: Tried) -> str:
    """The flags of our patches are among the server's."""
    if tried.is_product:
        tried.run("--help")
    if not tried.has_server:
        return "the orchestrator's"
    flags = tried.run("--help", entrypoint=SERVER)
    if "--spec-draft-relaxed-top-n" not in flags:
        raise Wrong("llama-server --help lacks --spec-draft-relaxed-top-n: it was built without the patches")
    return f"{flags.count(chr(10))} lines"


def holds_what_was_asked_for(tried: Tried) -> str:
    """/versions.json: variant, architectures, patches; and a user that is not root."""
    configuration = json.loads(ask("image", "inspect", tried.image) or "[{}]")[0]["Config"]
    _same("the user", configuration["User"], "10001:10001")
    facts: dict[str, Any] = json.loads(tried.run("/versions.json", entrypoint="cat"))
    if tried.is_product:
        _same("slipstream.version in /versions.json", facts["slipstream"]["version"], product_version())
    if not tried.has_server:
        return f"slipstream {product_version()}"
    variant = tried.expected.variant
    _same("variant in /versions.json", facts["variant"], variant.name)
    _same("accelerator in /versions.json", facts["accelerator"], variant.accelerator)
    _same("architectures in /versions.json", sorted(facts["architectures"]), sorted(variant.architectures))
    _same("llama_cpp.patches_sha256", facts["llama_cpp"]["patches_sha256"], tried.expected.series.digest)
    return f"{variant.name}, {len(facts['packages'])} packages"


def answers_on_the_cpu(tried: Tried) -> str:
    """Serves a model read-only, without capabilities, and is healthy. The orchestrator alone asks for a server."""
    if not tried.has_server:
        return _asks_for_a_server(tried)
    with tempfile.TemporaryDirectory(prefix="slipstream-smoke-") as folder, _container(tried, Path(folder)) as url:
        body: dict[str, Any] = {"model": "smoke", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
        answer = _post(f"{url}/v1/completions", body)
    tokens = answer["usage"]["completion_tokens"]
    drafted = answer.get("timings", {}).get("draft_n", 0)
    if not tokens or (tried.drafts and not drafted):
        raise Wrong(f"it answered with {tokens} tokens of which {drafted} were drafted: {json.dumps(answer)[:500]}")
    return f"{tokens} tokens" + (f", {drafted} drafted" if tried.drafts else "")


def _asks_for_a_server(tried: Tried) -> str:
    try:
        said = tried.run("serve", "--host", "127.0.0.1")
    except Wrong as error:
        if "there is no patched llama-server" in str(error):
            return "none of its own, it says so"
        raise
    raise Wrong(f"`serve` without a server ended well: {said.strip()[-1000:]}")


@contextmanager
def _container(tried: Tried, folder: Path) -> Iterator[str]:
    """The image at work, with the model: its address, once it is healthy."""
    name = f"slipstream-smoke-{secrets.token_hex(6)}"
    options = ("--detach", "--name", name, *tried.hardened, *HEALTH, "--publish", "127.0.0.1::8080")
    _docker("run", *options, *_orders(tried, folder))
    try:
        _wait_until_healthy(name)
        yield f"http://{ask('port', name, '8080')}"
    except (Wrong, OSError, KeyError, ValueError) as error:
        done = subprocess.run(["docker", "logs", "--tail", LOG_LINES, name], capture_output=True, text=True)
        raise Wrong(f"{error}\n{done.stdout}{done.stderr}".rstrip()) from error
    finally:
        ask("rm", "--force", "--volumes", name)


def _orders(tried: Tried, folder: Path) -> list[str]:
    """Mounts, environment, image and command that serve the model as `smoke`."""
    mounts = ["--volume", f"{tried.model.resolve()}:{MODEL}:ro"]
    command = ["--model", MODEL, *(("--spec-type", "draft-mtp") if tried.drafts else ())]
    if tried.is_product:
        speculation = "speculation: {type: draft-mtp, n_max: 2}\n" if tried.drafts else ""
        (folder / "smoke.yaml").write_text(MODEL_FILE + speculation, encoding="utf-8")
        # The place of the model's own mount.
        (folder / Path(MODEL).name).touch()
        folder.chmod(0o755)
        mounts = ["--volume", f"{folder}:{Path(MODEL).parent}:ro", *mounts]
        command = []
    environment = ["--env", "SLIPSTREAM_ACCELERATOR=cpu", "--env", "SLIPSTREAM_ALLOW_NO_KEYS=true"]
    return [*mounts, *environment, tried.image, *command]


def _wait_until_healthy(container: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        state = json.loads(ask("inspect", "--format", "{{json .State}}", container) or "{}")
        health = state.get("Health", {})
        if health.get("Status") == "healthy":
            return
        if not state.get("Running"):
            raise Wrong(f"it ended with exit status {state.get('ExitCode')}")
        if time.monotonic() > deadline:
            said = (health.get("Log") or [{"Output": ""}])[-1]["Output"].strip()
            raise Wrong(f"it is {health.get('Status')} after {READY_SECONDS:.0f} s: {said}")
        time.sleep(POLL_SECONDS)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    # No proxy of the environment: the address is this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        raise Wrong(f"POST {url}: {error.code} {error.read(1000).decode(errors='replace')}") from error


CHECKS: tuple[tuple[str, Callable[[Tried], str]], ...] = (
    ("--version", says_its_version),
    ("--help", has_help),
    ("/versions.json", holds_what_was_asked_for),
    ("answer on the CPU", answers_on_the_cpu),
)


def smoke(image: str, variant: str = "", model: Path | None = None) -> None:
    """Try an image out and say what came of it. Raises PinError where something is wrong or it is not there."""
    text = ask("image", "inspect", image)
    if text is None:
        raise PinError(f"this engine has no image {image}; build it (scripts/images build) or pull it first")
    held = json.loads(text)[0]["Config"].get("Labels") or {}
    name = variant or held.get("slipstream.variant")
    if not name:
        raise PinError(f"{image} has no label slipstream.variant: it is none of ours, or name its --variant")
    kind = "slipstream" if held.get("org.opencontainers.image.title") == "Slipstream" else "llama-server"
    [expected] = images_of([name], kind)
    # The engine would make a folder of that name.
    if model is not None and not model.is_file():
        raise PinError(f"--model {model} is no file")
    failures = 0
    with tempfile.TemporaryDirectory(prefix="slipstream-toy-") as folder:
        toy = None if model else _toy(Path(folder, "toy.gguf"))
        tried = Tried(image, expected, model or toy or Path(), drafts=toy is not None)
        for title, check in CHECKS:
            try:
                say(f"{image}: ok    {title}: {check(tried)}")
            except (Wrong, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                failures += 1
                say(f"{image}: WRONG {title}: {error}")
    if failures:
        raise PinError(f"{image} FAILED {failures} of {len(CHECKS)} checks")
    say(f"{image} PASSED {len(CHECKS)} checks")


def _toy(path: Path) -> Path:
    """A toy with an MTP block, made by the tests' maker, which needs what `make venv` brings."""
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        raise PinError("a toy model is made with .venv, which is not there: make venv, or --model FILE.gguf")
    subprocess.run([python, "-m", "tests.toys", "mtp", path], cwd=ROOT, check=True, capture_output=True)
    path.chmod(0o644)
    path.parent.chmod(0o755)
    return path
