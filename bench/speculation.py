"""Does n-gram drafting pay on this machine? SmolLM2, plain and with drafts, in turns."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.model import PROMPTS, chat, smollm2
from bench.report import ratios, spread, table
from tests.support import running_server

_TOKENS = 160
_THREADS = ("--threads", "2", "--parallel", "1", "--ctx-size", "8192")
_NGRAM = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8")


def run(server: Path, rounds: int) -> None:
    """Print tokens per second, acceptance, and whether the text was the same."""
    model = smollm2()
    with (
        TemporaryDirectory() as folder,
        running_server(server, model, *_THREADS, log=Path(folder) / "plain.log") as plain,
        running_server(server, model, *_THREADS, *_NGRAM, log=Path(folder) / "ngram.log") as ngram,
    ):
        rows = []
        for kind, text in PROMPTS.items():
            speed: dict[str, list[float]] = defaultdict(list)
            outputs: dict[str, set[str]] = defaultdict(set)
            for _ in range(rounds + 1):
                for name, one in (("plain", plain), ("ngram", ngram)):
                    done = one.client.completion(chat(text), _TOKENS)
                    speed[name].append(done.timings["predicted_per_second"])
                    outputs[name].add(done.content)
            warm = {name: values[1:] for name, values in speed.items()}
            # The last answer was drafted; at temperature 0 every round drafts the same.
            acceptance = f"{done.accepted_n}/{done.draft_n} in {done.step_n} steps" if done.draft_n else "no drafts"
            same = "yes" if outputs["plain"] == outputs["ngram"] else "no"
            ratio = ratios(warm["ngram"], warm["plain"])
            rows.append([kind, spread(warm["plain"]), spread(warm["ngram"]), ratio, acceptance, same])
        header = ["the answer", "plain, tok/s", "ngram-simple, tok/s", "ratio", "accepted", "same text"]
        table(f"n-gram drafting, SmolLM2-135M Q4_1, {_TOKENS} tokens, temperature 0, {rounds} rounds", header, rows)
