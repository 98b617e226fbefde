"""What jobs have done since this process began: counts that only grow, whatever a job retries or resumes."""

from collections import Counter
from collections.abc import Iterable

from orchestrator.schemas import JobState


class Figures:
    """`ended` by kind and final state, `downloaded_bytes` by kind of source."""

    def __init__(self, kinds: Iterable[str]) -> None:
        final = [state for state in JobState if state.is_final]
        self.ended: Counter[tuple[str, str]] = Counter({(kind, str(state)): 0 for kind in kinds for state in final})
        self.downloaded_bytes: Counter[str] = Counter()
