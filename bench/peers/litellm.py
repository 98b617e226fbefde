"""LiteLLM's proxy in an environment of its own, installed when it is first needed."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load import Address
from bench.processes import free_port, running
from orchestrator.settings import Settings

# The newest whose extra `proxy` can be installed from PyPI: later ones need a litellm-proxy(-extras) that is not there.
VERSION = "1.108.7"
_START_SECONDS = 120.0
# Nothing goes out, nothing is logged for each request; the rest is as it comes.
_ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "NO_PROXY": "*",
}


@contextmanager
def running_litellm(
    upstream: Address, model: str, folder: Path, workers: int
) -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    """The proxy in front of an OpenAI-compatible server, and its address."""
    config = folder / f"litellm-{workers}.yaml"
    parameters = {
        "model": f"openai/{model}",
        "api_base": f"http://{upstream.host}:{upstream.port}/v1",
        "api_key": upstream.key or "none",
    }
    settings: dict[str, object] = {"telemetry": False, "request_timeout": 600}
    settings |= {"callbacks": [], "success_callback": [], "failure_callback": []}
    # It does not start without a key.
    key = f"sk-{secrets.token_hex(32)}"
    wanted = {
        "model_list": [{"model_name": model, "litellm_params": parameters}],
        "litellm_settings": settings,
        "general_settings": {"disable_spend_logs": True, "master_key": key},
    }
    config.write_text(json.dumps(wanted))
    port = free_port()
    argv = [str(_installed()), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--num_workers", str(workers)]
    with running(
        argv,
        folder / f"litellm-{workers}.log",
        _ENVIRONMENT,
        url=f"http://127.0.0.1:{port}",
        health="/health/readiness",
        deadline_seconds=_START_SECONDS,
    ) as (process, url):
        yield process, Address.of(url, key)


def _installed() -> Path:
    """Its program under the cache folder."""
    place = Settings().cache / "bench" / f"litellm-{VERSION}"
    program, python, mark = place / "bin" / "litellm", place / "bin" / "python", place / "installed"
    if not mark.exists():
        print(f"installing LiteLLM {VERSION} into {place.name} of the cache folder", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        wanted = f"litellm[proxy]=={VERSION}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wanted], check=True)
        mark.touch()
    return program
