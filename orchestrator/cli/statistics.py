"""What speculation did for one answer, in one line."""

from collections.abc import Mapping
from typing import Any

MARK = "↳"


def statistics_line(timings: Mapping[str, Any]) -> str:
    """The line under an answer, from llama-server's `timings`.

    `↳ R rounds, D drafted, A accepted (x %), t tok/round, s tok/s`: R verification steps, D and A tokens, t the mean
    acceptance length 1 + A/R. `, K relaxed` follows when tokens were accepted that were not the target's own. Without
    drafts there is no acceptance, so none is shown; an unpatched server counts no rounds.
    """
    drafted, accepted = int(timings.get("draft_n") or 0), int(timings.get("draft_n_accepted") or 0)
    rounds, relaxed = int(timings.get("draft_n_steps") or 0), int(timings.get("draft_n_relaxed") or 0)
    speed = timings.get("predicted_per_second")
    tail = [f"{speed:.1f} tok/s"] if isinstance(speed, int | float) else []
    if not drafted:
        return f"{MARK} " + ", ".join(["no drafts", *tail])
    parts = [f"{rounds} rounds"] if rounds else []
    parts += [f"{drafted} drafted", f"{accepted} accepted ({100 * accepted / drafted:.1f} %)"]
    parts += [f"{1 + accepted / rounds:.2f} tok/round"] if rounds else []
    parts += tail
    parts += [f"{relaxed} relaxed"] if relaxed else []
    return f"{MARK} " + ", ".join(parts)
