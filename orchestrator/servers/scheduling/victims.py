"""Who may have to go for whom, when, and who goes first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.servers.scheduling.board import Board
from orchestrator.servers.scheduling.room import helps, relieved
from orchestrator.servers.scheduling.world import Instance, Model, Phase

# A model that was up at once is cheap to bring back, not free.
_LEAST_LOAD_SECONDS = 1e-3

Value = tuple[bool, bool, int, bool, float, int]


@dataclass(frozen=True)
class Candidate:
    """An instance that may have to go. `at` is when it may, infinite where an event must come first.

    `value` is what it is worth: the least goes first.
    """

    instance: Instance
    at: float
    value: Value


def is_idle(board: Board, instance: Instance) -> bool:
    """Whether it serves nobody, and nobody is about to get hold of it.

    Requests wait for a moment also for a server that has just become ready: it is not idle, it begins its turn.
    """
    return instance.running == 0 and board.model(instance.model).waiting == 0


def turn_end(board: Board, instance: Instance) -> float:
    """Until when a busy server may keep those waiting who need its memory."""
    rules = board.world.rules
    turn = rules.turn_loads * instance.load_seconds
    return instance.since + min(max(turn, rules.turn_least_seconds), rules.turn_most_seconds)


def is_kept(board: Board, demand: Model, instance: Instance) -> bool:
    """Whether `demand` may not have it go, because it is pinned and its command does not name it."""
    if instance.model == demand.name or not board.model(instance.model).pinned:
        return False
    return not (demand.asked and instance.model in demand.replaces)


def never_goes(board: Board, demand: Model, instance: Instance) -> bool:
    """Whether it stays whatever `demand` needs: nothing else has it go either."""
    if instance.id in board.going or instance.model in board.replaced:
        return False
    return is_kept(board, demand, instance)


def may_replace(board: Board, demand: Model, instance: Instance) -> bool:
    """Whether an asked model may have one go that it replaces: of two commands the first in order wins.

    An old version protects nothing: its model is to come back as another anyway.
    """
    other = board.model(instance.model)
    return not other.asked or board.order(demand) < board.order(other) or not board.is_current(instance)


def candidate(board: Board, demand: Model, instance: Instance) -> Candidate:
    """When an instance may go for `demand`, and what it is worth."""
    other = board.model(instance.model)
    is_own, idle = other.name == demand.name, is_idle(board, instance)
    busy = instance.phase is Phase.READY and not idle
    rest = 0.0
    if instance.phase is Phase.READY and idle:
        rest = (board.now - instance.idle_since) / max(instance.load_seconds, _LEAST_LOAD_SECONDS)
    value = (not is_own, busy, other.priority, other.wanted, -rest, instance.id)
    return Candidate(instance, board.now if is_own else _goes_at(board, demand, instance, busy), value)


def choose(candidates: list[Candidate], short: Mapping[str, int], now: float) -> list[Candidate] | None:
    """The least costly of them that hold what is missing; None when all of them do not.

    If those that may go now are enough, it is the least valued of them; otherwise those that may go soonest.
    """
    chosen = _greedy(sorted((c for c in candidates if c.at <= now), key=lambda c: c.value), short)
    if chosen is None:
        chosen = _greedy(sorted(candidates, key=lambda c: (c.at, c.value)), short)
    return chosen


def _goes_at(board: Board, demand: Model, instance: Instance, busy: bool) -> float:
    other = board.model(instance.model)
    if demand.asked and other.name in demand.replaces:
        return board.now if may_replace(board, demand, instance) else math.inf
    if other.asked and not _yields(board, demand, instance):
        return math.inf
    if instance.phase is Phase.LOADING:
        is_needed = other.waiting > 0 or (other.wanted and not demand.asked)
        return math.inf if is_needed else board.now
    if demand.asked:
        return board.now
    end = turn_end(board, instance)
    return end if busy else min(end, instance.idle_since + _linger(board, instance))


def _linger(board: Board, instance: Instance) -> float:
    """How long one that has just become idle may still expect its next request: clients ask again and again."""
    rules = board.world.rules
    return min(rules.linger_loads * instance.load_seconds, rules.linger_most_seconds)


def _yields(board: Board, demand: Model, instance: Instance) -> bool:
    """Whether an instance of an asked model goes for an asked demand: an old version, for one that is before it in
    order. Otherwise two commands that need each other's memory would wait for each other.
    """
    if not demand.asked or board.is_current(instance):
        return False
    return board.order(demand) < board.order(board.model(instance.model))


def _greedy(candidates: list[Candidate], short: Mapping[str, int]) -> list[Candidate] | None:
    chosen: list[Candidate] = []
    left = dict(short)
    for c in candidates:
        if left and helps(left, c.instance.needs):
            chosen.append(c)
            left = relieved(left, c.instance.needs)
    if left:
        return None
    for c in reversed(chosen[:-1]):
        others = [o for o in chosen if o is not c]
        if not _left(others, short):
            chosen = others
    return chosen


def _left(chosen: list[Candidate], short: Mapping[str, int]) -> dict[str, int]:
    left = dict(short)
    for c in chosen:
        left = relieved(left, c.instance.needs)
    return left
