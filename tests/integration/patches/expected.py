"""What llama-server must answer with a ``trunk=0`` toy: its verification loop in plain Python.

Written from the semantics, not from the C++ (common/sampling.cpp, tools/server/server-context.cpp at the pin): a
step drafts at most n_max tokens and never past the request's end, emits what it accepts, and one token of the
target's own. Where the target cannot step back, a partly refused draft is decoded again without what was refused.
"""

from dataclasses import dataclass, field

from tests.support import Completion
from tests.toys import Language
from tests.toys.vocabulary import CONTROL, END_OF_GENERATION


@dataclass
class Expected:
    """Tokens and counts of one answer at temperature 0."""

    tokens: list[int] = field(default_factory=list)
    draft_n: int = 0
    relaxed_n: int = 0
    accepted_by_step: list[int] = field(default_factory=list)

    @property
    def accepted_n(self) -> int:
        return sum(self.accepted_by_step)

    @property
    def step_n(self) -> int:
        return len(self.accepted_by_step)

    def assert_is(self, answer: Completion) -> None:
        """Compare with a real answer, the counts only if the server made any drafts."""
        assert list(answer.tokens) == self.tokens
        assert (answer.draft_n, answer.accepted_n) == (self.draft_n, self.accepted_n)
        assert (answer.relaxed_n, answer.step_n) == (self.relaxed_n, self.step_n)


def expect(
    language: Language, last: int, n_predict: int, n_max: int, top_n: int = 0, replays: bool = False
) -> Expected:
    """The answer to a prompt that ends with the token ``last``; ``top_n`` is relaxed_top_n."""
    answer = Expected([int(language.ranking[last, 0])])
    while len(answer.tokens) < n_predict and answer.tokens[-1] not in END_OF_GENERATION:
        n_draft = min(n_max, n_predict - len(answer.tokens) - 1)
        emitted, relaxed_n = _verify(language, answer.tokens[-1], n_draft, top_n)
        accepted_n = len(emitted) - 1
        if replays and accepted_n < n_draft and emitted[-1] not in END_OF_GENERATION:
            # The refusing choice itself became part of the decoded-again draft: one more choice of the target.
            emitted.append(int(language.ranking[emitted[-1], 0]))
        answer.tokens += emitted
        if n_draft:
            answer.draft_n += n_draft
            answer.relaxed_n += relaxed_n
            answer.accepted_by_step.append(accepted_n)
    return answer


def _verify(language: Language, last: int, n_draft: int, top_n: int) -> tuple[list[int], int]:
    """One step: the emitted tokens, the last of them the target's own, and how many were relaxed."""
    emitted: list[int] = []
    relaxed_n = 0
    for _ in range(n_draft):
        draft, choice = int(language.drafted[last]), int(language.ranking[last, 0])
        relaxed = draft != choice and language.rank(last, draft) <= top_n and not {draft, choice} & set(CONTROL)
        if draft != choice and not relaxed:
            return [*emitted, choice], relaxed_n
        emitted.append(draft)
        relaxed_n += relaxed
        last = draft
    return [*emitted, int(language.ranking[last, 0])], relaxed_n
