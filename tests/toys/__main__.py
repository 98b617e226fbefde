"""``python -m tests.toys mtp|hybrid|replay|arch|pair|split``: write toy models from the command line."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.toys import (
    ARCHITECTURES,
    Knobs,
    split_mtp,
    write_architecture,
    write_hybrid,
    write_mtp,
    write_pair,
    write_replay,
)
from tests.toys.vocabulary import END_OF_TEXT

SINGLE_FILE: dict[str, tuple[Callable[[Path, Knobs], object], str]] = {
    "mtp": (write_mtp, "glm4moe with one MTP block (--spec-type draft-mtp)"),
    "hybrid": (write_hybrid, "qwen35, a hybrid with bounded rollback, one MTP block (--spec-type draft-mtp)"),
    "replay": (write_replay, "jamba, a hybrid without rollback; draft with the pair's drafter"),
}


def _parser() -> argparse.ArgumentParser:
    knobs = argparse.ArgumentParser(add_help=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    knobs.add_argument("--seed", type=int, default=0, help="table and weights")
    knobs.add_argument("--trunk", type=float, default=0.0, help="context dependence, 0 to 1")
    knobs.add_argument("--gap", type=float, default=0.5, help="logits between two ranks")
    knobs.add_argument("--draft-rank", type=int, default=1, help="rank the drafter drafts")
    knobs.add_argument("--noise", type=float, default=0.0, help="share of drafts that miss")
    knobs.add_argument("--miss-rank", type=int, default=8, help="rank of a draft that misses")
    knobs.add_argument("--stop-after", metavar="CHAR", help="the text ends after this character")

    parser = argparse.ArgumentParser(prog="python -m tests.toys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, help_text) in SINGLE_FILE.items():
        commands.add_parser(name, parents=[knobs], help=help_text).add_argument("out", type=Path)
    arch = commands.add_parser("arch", parents=[knobs], help="any architecture with MTP blocks (--spec-type draft-mtp)")
    arch.add_argument("--heads", type=int, default=1, help="number of MTP blocks, where several are allowed")
    arch.add_argument("name", choices=ARCHITECTURES)
    arch.add_argument("out", type=Path)
    pair = commands.add_parser("pair", parents=[knobs], help="llama target and drafter (--spec-type draft-simple)")
    pair.add_argument("target", type=Path)
    pair.add_argument("drafter", type=Path)
    split = commands.add_parser("split", help="cut an MTP or hybrid toy into trunk, drafter and donor")
    split.add_argument("source", type=Path)
    split.add_argument("into", type=Path)
    return parser


def _knobs(arguments: argparse.Namespace) -> Knobs:
    follow = {byte: (END_OF_TEXT,) for byte in (arguments.stop_after or "").encode()}
    names = ("seed", "trunk", "gap", "draft_rank", "noise", "miss_rank")
    return Knobs(**{name: getattr(arguments, name) for name in names}, follow=follow)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    match arguments.command:
        case "arch":
            write_architecture(arguments.name, arguments.out, _knobs(arguments), arguments.heads)
            written = [arguments.out]
        case "pair":
            write_pair(arguments.target, arguments.drafter, _knobs(arguments))
            written = [arguments.target, arguments.drafter]
        case "split":
            arguments.into.mkdir(parents=True, exist_ok=True)
            files = split_mtp(arguments.source, arguments.into)
            written = [files.trunk, files.drafter, files.donor]
        case single:
            SINGLE_FILE[single][0](arguments.out, _knobs(arguments))
            written = [arguments.out]
    for path in written:
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
