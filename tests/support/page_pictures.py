"""Pictures of the page for the documents: `python -m tests.support.page_pictures docs/pictures`.

It needs Chromium, a llama-server (SLIPSTREAM_TEST_SERVER) and SmolLM2-135M in the store, which `make demo` brings.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, expect

from tests.support.browser import chromium_path, entry, opened, running_chromium
from tests.support.hub import running_hub
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.smollm2 import original
from tests.support.toybox import ToyBox

_SIZE = (1280, 940)
_THREADS: dict[str, Any] = {"threads": 1, "spec_draft_threads": 1}
_ONE_THREAD: dict[str, Any] = {"threads": 1}
_NGRAMS = {"spec_ngram_simple_size_n": 4, "spec_ngram_simple_size_m": 8}
_WEIGHTS_BYTES = 400_000_000
_BYTES_PER_SECOND = 800_000.0
_SETTLED_MS = 3000
_QUESTIONS = ("Write one short sentence that welcomes a new colleague.", "Say exactly that again.")


def furnish(house: Orchestrator, smollm2: Path, toys: ToyBox) -> None:
    """A real model, toys that draft and that do not, one to be brought, and one that will not start."""
    house.write_model(
        "smollm2-135m",
        smollm2,
        speculation={"type": "ngram-simple"},
        server=_ONE_THREAD | _NGRAMS | {"ctx_size": 8192, "parallel": 2},
        aliases=["smollm2"],
    )
    house.write_model(
        "toy-mtp",
        toys.mtp().path,
        speculation={"type": "draft-mtp", "n_max": 3},
        server=_THREADS | {"ctx_size": 16384, "parallel": 2, "context_shift": True},
    )
    house.write_model("toy-plain", toys.pair().path, server=_THREADS | {"ctx_size": 2048})
    house.write_model("toy-large", source={"hf": "acme/toy-GGUF", "file": "toy-large-F32.gguf"})


@contextmanager
def traffic(house: Orchestrator, model: str) -> Iterator[None]:
    """One answer after another of a model, until the end of the block."""
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=house.base_url, timeout=60.0, trust_env=False) as client:
            while not ended.is_set():
                body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2000}
                client.post("/v1/chat/completions", json=body | {"temperature": 0, "ignore_eos": True})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def draw(page: Page, out: Path) -> None:
    """Ask the real model, and keep what the page then looks like."""
    page.select_option("#chat-model", "smollm2-135m")
    options = page.locator("details.options summary")
    options.click()
    page.fill("[data-field=temperature]", "0")
    options.click()
    for number, question in enumerate(_QUESTIONS):
        page.fill("#chat-text", question)
        page.press("#chat-text", "Enter")
        expect(page.locator(".statistics").nth(number)).to_contain_text("tok/s", timeout=60_000)
    expect(page.locator("[data-job]").first).to_contain_text("left", timeout=60_000)
    # What the answers did has come into the figures.
    page.wait_for_timeout(_SETTLED_MS)
    expect(entry(page, "toy-mtp").locator("tr.busy").first).to_be_visible()
    page.screenshot(path=out)


def main() -> int:
    """Draw one picture for each theme."""
    parser = argparse.ArgumentParser(description="pictures of the page")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/pictures"))
    folder: Path = parser.parse_args().folder
    smollm2, binary = original(), os.environ.get("SLIPSTREAM_TEST_SERVER")
    if chromium_path() is None or smollm2 is None or binary is None:
        print("needed: Debian's package `chromium`, SmolLM2-135M (make demo), SLIPSTREAM_TEST_SERVER", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as temporary, running_hub() as hub:
        hub.add("acme/toy-GGUF", "toy-large-F32.gguf", bytes(_WEIGHTS_BYTES))
        hub.bytes_per_second = _BYTES_PER_SECOND
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
        house = Orchestrator(Path(temporary) / "home", Path(binary), {}, environment)
        furnish(house, smollm2, ToyBox(Path(temporary)))
        with running_orchestrator(house), running_chromium() as browser:
            for model in ("smollm2-135m", "toy-mtp"):
                house.start_model(model)
            house.http.post("/api/models/toy-large/pull").raise_for_status()
            with traffic(house, "toy-mtp"):
                for scheme in ("light", "dark"):
                    with opened(browser, house.base_url, _SIZE, scheme) as watched:
                        draw(watched.page, folder / f"page-{scheme}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
