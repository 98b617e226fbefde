"""Where a demand can be met, at what cost, and since when."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from orchestrator.servers.scheduling import words
from orchestrator.servers.scheduling.board import Board
from orchestrator.servers.scheduling.room import relieved
from orchestrator.servers.scheduling.victims import Candidate, Value, candidate, choose, is_kept, never_goes
from orchestrator.servers.scheduling.world import Instance, Model, Option


class Outcome(IntEnum):
    """How an option stands, best first."""

    FITS = 0
    # What it needs is coming back already.
    COMING = 1
    EVICT = 2
    # Who has to go may not yet.
    LATER = 3
    # Earlier demands count upon what it needs.
    BEHIND = 4
    NEVER = 5


@dataclass(frozen=True)
class Offer:
    """What one option would take. `goes` have to go, the last of them at `at`; `why` says so to those who wait."""

    option: Option
    outcome: Outcome
    goes: tuple[Candidate, ...] = ()
    short: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0
    why: str = ""

    @property
    def cost(self) -> tuple[Outcome, float, Value | tuple[()], int]:
        """The least is chosen; of equal ones the first of the model's options."""
        if self.outcome is Outcome.LATER:
            return (self.outcome, self.at, (), 0)
        dearest = max((c.value for c in self.goes), default=())
        return (self.outcome, 0.0, dearest, len(self.goes))


def best_offer(board: Board, demand: Model) -> Offer:
    """The option to take; `demand` has at least one."""
    offers: list[Offer] = []
    for option in demand.options:
        offer = _offer(board, demand, option)
        if offer.outcome is Outcome.FITS:
            return offer
        offers.append(offer)
    return min(offers, key=lambda offer: offer.cost)


def fits_alone(board: Board, model: Model) -> Option | None:
    """The first option that starts without anybody having to go."""
    if _group_of_others(board, model) or _group_claim(board, model) is not None:
        return None
    return next((option for option in model.options if board.room.fits(option)), None)


def never(board: Board, demand: Model, option: Option) -> str | None:
    """Why an option is out of reach for as long as those that are pinned stay; None when it is not."""
    pinned = [i for i in board.world.instances if never_goes(board, demand, i)]
    holder = next((i for i in pinned if demand.group and board.model(i.model).group == demand.group), None)
    if holder is not None:
        return f"of group {demand.group!r} one is loaded at a time, and {holder.model!r} never makes room (pinned)"
    return words.too_large(board, option, pinned)


def _offer(board: Board, demand: Model, option: Option) -> Offer:
    reason = never(board, demand, option)
    if reason is not None:
        return Offer(option, Outcome.NEVER, why=reason)
    first = _group_claim(board, demand)
    if first is not None:
        return Offer(option, Outcome.BEHIND, why=f"{first!r} is of the same group and goes before it")
    others = _group_of_others(board, demand)
    if not others and board.room.fits(option):
        return Offer(option, Outcome.FITS)
    short = board.room.short(option)
    must = [i for i in others if i.id not in board.going]
    must += [i for i in _replaced(board, demand, option) if short and i not in must]
    if any(is_kept(board, demand, i) for i in must):
        return _behind(board, demand, option)
    left: dict[str, int] = dict(short)
    for i in must:
        # The memory of one that an earlier demand counts upon has been given to that one.
        if i.host == option.host and i.id not in board.taken:
            left = relieved(left, i.needs)
    chosen = choose(_candidates(board, demand, option, must), left, board.now) if left else []
    if chosen is None:
        return _behind(board, demand, option)
    return _priced(board, demand, option, [candidate(board, demand, i) for i in must] + chosen)


def _priced(board: Board, demand: Model, option: Option, goes: list[Candidate]) -> Offer:
    """An offer that takes `goes`, who may be none: then what is missing is coming back."""
    at = max((math.inf if c.instance.id in board.taken else c.at for c in goes), default=board.now)
    outcome = Outcome.LATER if at > board.now else Outcome.EVICT if goes else Outcome.COMING
    when = ""
    if outcome is Outcome.LATER:
        when = ", once its turn is over" if at < math.inf else ", once it has loaded or the command for it is done"
    late = [
        c.instance for c in goes if outcome is not Outcome.LATER or c.at > board.now or c.instance.id in board.taken
    ]
    leaving = late or [
        i for i in board.world.instances if i.id in board.going and _is_in_the_way(board, demand, option, i)
    ]
    why = words.has_to_leave(board, demand, option, leaving, when) if leaving else _who_is_before(board, option)
    return Offer(option, outcome, tuple(goes), board.room.lacking(option), at, why)


def _behind(board: Board, demand: Model, option: Option) -> Offer:
    """An offer that takes nothing: who has to go is spoken for by an earlier demand, or by a command to replace it."""
    kept = [i.model for i in board.world.instances if i.id not in board.going and is_kept(board, demand, i)]
    named = next((name for name in kept if name in board.replaced), None)
    why = _who_is_before(board, option) if named is None else f"{named!r} is pinned, and has yet to be replaced"
    return Offer(option, Outcome.BEHIND, why=why)


def _who_is_before(board: Board, option: Option) -> str:
    first = board.queues.get(option.host)
    return f"{first!r} goes before it" if first else "what has ended has not given its memory back yet"


def _is_in_the_way(board: Board, demand: Model, option: Option, instance: Instance) -> bool:
    if demand.group and instance.model != demand.name and board.model(instance.model).group == demand.group:
        return True
    short = board.room.lacking(option)
    return instance.host == option.host and any(instance.needs.get(device, 0) > 0 for device in short)


def _candidates(board: Board, demand: Model, option: Option, must: list[Instance]) -> list[Candidate]:
    out = board.going | board.taken | {i.id for i in must}
    return [
        candidate(board, demand, i)
        for i in board.world.instances
        if i.host == option.host and i.id not in out and not is_kept(board, demand, i)
    ]


def _replaced(board: Board, demand: Model, option: Option) -> list[Instance]:
    if not demand.asked:
        return []
    names = [name for name in dict.fromkeys(demand.replaces) if name != demand.name]
    return [i for name in names for i in board.alive(name) if i.host == option.host]


def _group_of_others(board: Board, model: Model) -> list[Instance]:
    """Instances of other models of its group, those that go included."""
    if model.group is None:
        return []
    return [i for i in board.world.instances if i.model != model.name and board.model(i.model).group == model.group]


def _group_claim(board: Board, model: Model) -> str | None:
    """An earlier demand of its group."""
    first = None if model.group is None else board.groups.get(model.group)
    return None if first == model.name else first
