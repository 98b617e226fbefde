"""Which bytes of a file are there, and who brings which of the others. Pure: no file, no network, no thread."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# A file of unknown size ends here until its end was seen.
UNBOUNDED = 1 << 62


class Ranges:
    """Bytes as disjoint ranges `[start, stop)`, in order."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for start, stop in ranges:
            self.add(start, stop)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, start: int, stop: int) -> None:
        """Take in a range; ranges that touch become one."""
        if start >= stop:
            return
        apart = [r for r in self._ranges if r[1] < start or r[0] > stop]
        met = [r for r in self._ranges if r[1] >= start and r[0] <= stop]
        joined = (min([start, *(r[0] for r in met)]), max([stop, *(r[1] for r in met)]))
        self._ranges = sorted([*apart, joined])

    @property
    def front(self) -> int:
        """Bytes from the start on without a gap."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    @property
    def bytes(self) -> int:
        """Bytes in all."""
        return sum(stop - start for start, stop in self._ranges)

    @property
    def stop(self) -> int:
        """End of the last one."""
        return self._ranges[-1][1] if self._ranges else 0

    def gaps(self, stop: int) -> Iterator[tuple[int, int]]:
        """What is missing up to `stop`."""
        at = 0
        for start, end in self._ranges:
            if start >= stop:
                break
            if start > at:
                yield at, start
            at = end
        if at < stop:
            yield at, stop


@dataclass(eq=False)
class Claim:
    """A range that one connection brings: `position` moves from `start` to `stop`, and `stop` may come nearer."""

    start: int
    position: int
    stop: int

    @property
    def left_bytes(self) -> int:
        """Bytes still to come."""
        return self.stop - self.position


class Plan:
    """The bytes of one file that are there, and the claims on the rest. Not safe for threads: guard it."""

    def __init__(self, total_bytes: int | None, done: Iterable[tuple[int, int]] = ()) -> None:
        self.total_bytes = total_bytes
        self._done = Ranges(done)
        self._claims: list[Claim] = []

    @property
    def front(self) -> int:
        """Bytes from the start on without a gap."""
        return self.done().front

    @property
    def is_complete(self) -> bool:
        """Whether every byte is there."""
        return self.total_bytes is not None and self.front >= self.total_bytes

    @property
    def is_claimed(self) -> bool:
        """Whether any claim is open."""
        return bool(self._claims)

    def done(self) -> Ranges:
        """What is there now."""
        done = Ranges(self._done)
        for claim in self._claims:
            done.add(claim.start, claim.position)
        return done

    def claim(self, limit_bytes: int | None) -> Claim | None:
        """The first bytes that nobody has or brings, at most `limit_bytes` of them; None if there are none."""
        for start, stop in self._free():
            return self._open(start, stop if limit_bytes is None else min(stop, start + limit_bytes))
        return None

    def extend(self, claim: Claim, stop: int) -> bool:
        """Move the end of a claim on, at most to `stop`, if what follows is free."""
        for start, end in self._free():
            if start == claim.stop < stop:
                claim.stop = min(stop, end)
                return True
        return False

    def split(self, least_bytes: int) -> Claim | None:
        """Half of what the slowest claim still has to bring; None where the halves would be under `least_bytes`."""
        if not self._claims or self.total_bytes is None:
            return None
        slowest = max(self._claims, key=lambda claim: claim.left_bytes)
        if slowest.left_bytes < 2 * least_bytes:
            return None
        middle, stop = slowest.position + slowest.left_bytes // 2, slowest.stop
        slowest.stop = middle
        return self._open(middle, stop)

    def trim(self, limit_bytes: int) -> None:
        """Leave every claim at most `limit_bytes`; the rest is free for others."""
        for claim in self._claims:
            claim.stop = min(claim.stop, claim.position + limit_bytes)

    def advance(self, claim: Claim, count_bytes: int) -> None:
        """`count_bytes` more of a claim were written."""
        claim.position += count_bytes

    def release(self, claim: Claim) -> None:
        """Close a claim; what it did not bring is free again."""
        self._claims.remove(claim)
        self._done.add(claim.start, claim.position)

    def end_at(self, total_bytes: int) -> None:
        """The size has become known."""
        self.total_bytes = total_bytes
        for claim in self._claims:
            claim.stop = min(claim.stop, total_bytes)

    def _free(self) -> Iterator[tuple[int, int]]:
        """What nobody has or brings."""
        taken = Ranges(self._done)
        for claim in self._claims:
            taken.add(claim.start, claim.stop)
        return taken.gaps(UNBOUNDED if self.total_bytes is None else self.total_bytes)

    def _open(self, start: int, stop: int) -> Claim:
        claim = Claim(start, start, stop)
        self._claims.append(claim)
        return claim
