"""What a toy says: for every token an exact ranking of all tokens that may follow it.

With ``trunk=0`` a toy's logits depend on the last token alone and are the table of this module, so a test
knows in advance which token is the target's k-th choice, how probable it is, and what the drafter drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tests.toys import vocabulary

LEAD_BYTE = 0xC3
CONTINUATION_BYTE = 0xA9
GRADED_RANKS = 24
TAIL_GAP = 0.02

ASCII = [ord("\n"), *range(0x20, 0x7F)]
ALPHABET = [*ASCII, vocabulary.TH, vocabulary.HE, LEAD_BYTE]


@dataclass(frozen=True)
class Knobs:
    """How a toy behaves.

    seed: chooses the table and the weights.
    trunk: context dependence; 0 is an exact bigram model, 0.3 changes many choices, 1 drowns the table.
    gap: distance in logits between neighbouring ranks (the 24 best; beyond them 0.02).
    tied_ranks: how many of the best ranks have exactly the same logit.
    draft_rank: the drafter drafts the target's choice of this rank; 1 agrees with a target of ``trunk=0``.
    noise: share of tokens, 0 to 1, after which the drafter drafts the rank ``miss_rank`` instead.
    follow: for a token, the tokens that take the target's first ranks after it.
    drafts: for a token, the token the drafter drafts after it; goes before rank and noise.
    unsure: tokens after which the drafter is unsure of its draft: its gap is a fifth there.
    """

    seed: int = 0
    trunk: float = 0.0
    gap: float = 0.5
    tied_ranks: int = 1
    draft_rank: int = 1
    noise: float = 0.0
    miss_rank: int = 8
    follow: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    drafts: Mapping[int, int] = field(default_factory=dict)
    unsure: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tied_ranks", "draft_rank", "miss_rank"):
            value = getattr(self, name)
            if not 1 <= value <= vocabulary.SIZE:
                raise ValueError(f"{name} is {value}, expected a rank from 1 to {vocabulary.SIZE}")
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError(f"noise is {self.noise}, expected a share from 0 to 1")
        if self.trunk < 0.0:
            raise ValueError(f"trunk is {self.trunk}, expected 0 or more")


@dataclass(frozen=True)
class Language:
    """Rankings and logits that follow from the knobs; every table is indexed [last token, ...]."""

    knobs: Knobs

    @cached_property
    def ranking(self) -> NDArray[np.int64]:
        """[V, V]: the target's choices after each token, best first.

        Rank 1 walks one cycle through the whole alphabet, so greedy text neither stops nor loops early;
        printable tokens come before other bytes, and control tokens last, so the best ranks are valid UTF-8.
        """
        rng = np.random.default_rng(self.knobs.seed)
        successor = self._cycle(rng)
        others = [t for t in range(vocabulary.SIZE) if t not in ALPHABET and t not in vocabulary.CONTROL]
        rows = np.empty((vocabulary.SIZE, vocabulary.SIZE), np.int64)
        for token in range(vocabulary.SIZE):
            first = [successor.get(token, ASCII[token % len(ASCII)]), *self.knobs.follow.get(token, ())]
            if token in self.knobs.follow:
                first = [*first[1:], first[0]]
            if token == LEAD_BYTE:
                first += [CONTINUATION_BYTE, *range(0xA0, 0xC0)]
            tail = [*rng.permutation(ALPHABET), *rng.permutation(others), *vocabulary.CONTROL]
            rows[token] = list(dict.fromkeys(int(t) for t in first + tail))
        return rows

    @cached_property
    def target_logits(self) -> NDArray[np.float32]:
        """[V, V]: the target's logits after each token, centred."""
        return self._logits(self.ranking)

    @cached_property
    def drafted(self) -> NDArray[np.int64]:
        """[V]: the token the drafter drafts after each token."""
        drafted = self.ranking[:, self.knobs.draft_rank - 1].copy()
        rng = np.random.default_rng((self.knobs.seed, 1))
        missing = rng.permutation(ALPHABET)[: round(self.knobs.noise * len(ALPHABET))]
        drafted[missing] = self.ranking[missing, self.knobs.miss_rank - 1]
        for token, draft in self.knobs.drafts.items():
            drafted[token] = draft
        return drafted

    @cached_property
    def drafter_logits(self) -> NDArray[np.float32]:
        """[V, V]: the target's logits with the drafted token and the best one exchanged."""
        ranking = self.ranking.copy()
        rows = np.arange(vocabulary.SIZE)
        place = np.argmax(ranking == self.drafted[:, None], axis=1)
        ranking[rows, place] = ranking[:, 0]
        ranking[:, 0] = self.drafted
        logits = self._logits(ranking)
        logits[list(self.knobs.unsure)] /= 5
        return logits

    def rank(self, last: int, token: int) -> int:
        """1-based rank of a token among the target's choices after ``last``."""
        return int(np.argmax(self.ranking[last] == token)) + 1

    def greedy(self, last: int, n_tokens: int) -> list[int]:
        """What a ``trunk=0`` target says after ``last`` at temperature 0."""
        said: list[int] = []
        for _ in range(n_tokens):
            last = int(self.ranking[last, 0])
            said.append(last)
        return said

    def _cycle(self, rng: np.random.Generator) -> dict[int, int]:
        order = [int(t) for t in rng.permutation(ALPHABET)]
        order.insert(order.index(LEAD_BYTE) + 1, CONTINUATION_BYTE)
        return dict(zip(order, order[1:] + order[:1], strict=True))

    def _logits(self, ranking: NDArray[np.int64]) -> NDArray[np.float32]:
        ranks = np.maximum(np.arange(vocabulary.SIZE) - self.knobs.tied_ranks + 1, 0)
        graded = np.minimum(ranks, GRADED_RANKS - 1)
        by_rank = -self.knobs.gap * graded - TAIL_GAP * (ranks - graded)
        logits = np.empty(ranking.shape, np.float32)
        np.put_along_axis(logits, ranking, (by_rank - by_rank.mean()).astype(np.float32)[None, :], axis=1)
        return logits
