"""Figures of interleaved rounds, as a table."""

from collections.abc import Mapping, Sequence
from statistics import median


def spread(values: Sequence[float], digits: int = 1) -> str:
    """`median (least to greatest)`."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(ours: Sequence[float], base: Sequence[float]) -> str:
    """Median of the round-by-round ratios, with their range: both figures of a round met the same machine."""
    pairs = [a / b for a, b in zip(ours, base, strict=True)]
    return f"{median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n### {title}\n")
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")


def compare(title: str, unit: str, figures: Mapping[str, Sequence[float]]) -> None:
    """A table of settings against the first one."""
    base = next(iter(figures.values()))
    rows = [[name, spread(values), ratios(values, base)] for name, values in figures.items()]
    table(title, ["setting", unit, "ratio to the first, by round"], rows)
