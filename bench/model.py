"""The model that benchmarks run on, and what they ask it."""

from pathlib import Path

from orchestrator.catalog import load_catalog
from orchestrator.settings import Settings
from orchestrator.store import Layout
from orchestrator.store.bring import Bringer
from orchestrator.store.progress import Silent

MODELS = Path(__file__).parent.parent / "models"
LIST = "apples, bananas, cherries, dates, elderberries, figs, grapes, honeydew melons, kiwis, lemons"
# Drafting from what was said before pays only where the answer repeats it: one of each kind.
PROMPTS = {
    "repeats its prompt": f"Repeat this list exactly, five times, one list a line: {LIST}",
    "says something new": "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
}


def smollm2() -> Path:
    """Path of SmolLM2-135M, fetched if it is not there."""
    settings = Settings()
    source = load_catalog(MODELS).get("smollm2-135m").source
    return Bringer(Layout(MODELS, settings.cache), Silent()).bring(source).path


def chat(text: str) -> str:
    """`text` as a ChatML conversation that waits for the answer."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
