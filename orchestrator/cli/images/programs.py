"""Programs that are asked: each with a deadline, none through a shell."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError

HINTS = {
    "cosign": "cosign 3 is needed: Debian's package cosign (forky or later), or a release of sigstore/cosign on GitHub",
    "docker": "docker with its buildx plugin is needed: Debian's packages docker-cli and docker-buildx",
}
# Errors of programs may be pages long.
_LONGEST_REASON = 1000

Listener = Callable[[str], None]


@dataclass(frozen=True)
class Ended:
    """A program that has ended by itself."""

    status: int
    out: bytes
    err: str

    @property
    def reason(self) -> str:
        """The line of stderr that says what was wrong."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "failed"))]
        reason = (errors or lines[-1:] or [f"exit status {self.status}"])[0]
        if reason.lower().startswith("error:"):
            reason = reason.partition(":")[2].strip()
        return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


class Programs:
    """Runs programs, and tells a listener what they said."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener

    def run(self, argv: Sequence[str | Path], deadline_seconds: float, *, shown: bool = False) -> Ended:
        """Run to its end; what it says is `shown` on our stderr, or kept. Raises SlipstreamError: absent, too slow."""
        words = [str(word) for word in argv]
        try:
            # A session of its own, so that a plugin of `docker` ends with it.
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=2 if shown else subprocess.PIPE,
                stderr=None if shown else subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise SlipstreamError(
                Code.MISCONFIGURED, f"{words[0]} is not installed", hint=HINTS.get(words[0])
            ) from None
        try:
            out, err = process.communicate(timeout=deadline_seconds)
        except subprocess.TimeoutExpired:
            raise SlipstreamError(
                Code.UPSTREAM_TIMEOUT, f"{' '.join(words[:3])} did not end within {deadline_seconds:g} s"
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        ended = Ended(process.returncode, out or b"", (err or b"").decode(errors="replace"))
        if self._listener is not None:
            self._listener(f"$ {' '.join(words)}\n{ended.out.decode(errors='replace')}{ended.err}".rstrip())
        return ended
