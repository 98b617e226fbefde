"""What operators read of a decision."""

from collections.abc import Iterable, Mapping

from orchestrator.servers.scheduling.board import Board
from orchestrator.servers.scheduling.world import Instance, Model, Option

_MIB, _GIB = 1 << 20, 1 << 30


def size(number: int) -> str:
    """Bytes for a reader: `1.5 GiB`, `300 MiB`."""
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number / _MIB:.0f} MiB"


def named(names: Iterable[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, final = names
    return f"{', '.join(first)} {last} {final}" if first else final


def place(board: Board, host: str, devices: Iterable[str]) -> str:
    """Devices of a host, which is named where there are several."""
    what = named("RAM" if device == "host" else device for device in sorted(devices))
    return f"{what} of {host!r}" if len(board.world.budgets) > 1 else what


def makes_room(board: Board, model: Model, option: Option, victim: Instance, short: Mapping[str, int]) -> str:
    """Why a victim goes."""
    if victim.model == model.name:
        return "makes room for its new version"
    if victim.model in model.replaces and model.asked:
        return f"replaced by {model.name!r}"
    devices = [device for device in short if victim.host == option.host and victim.needs.get(device, 0) > 0]
    if devices:
        return f"makes room for {model.name!r} on {place(board, option.host, devices)}"
    return f"makes room for {model.name!r}: of group {model.group!r} one is loaded at a time"


def has_to_leave(board: Board, model: Model, option: Option, goes: Iterable[Instance], when: str = "") -> str:
    """Why a demand waits: who has to go, and from where."""
    lacking = board.room.lacking(option)
    places: dict[str, list[str]] = {}
    for i in goes:
        devices = [device for device in lacking if i.host == option.host and i.needs.get(device, 0) > 0]
        is_rival = model.group is not None and board.model(i.model).group == model.group
        elsewhere = f"group {model.group!r}" if is_rival else repr(i.host)
        where = place(board, i.host, devices) if devices else elsewhere
        who = "its old version" if i.model == model.name else repr(i.model)
        if who not in places.setdefault(where, []):
            places[where].append(who)
    said = (f"{named(who)} {'has' if len(who) == 1 else 'have'} to leave {where}" for where, who in places.items())
    return f"{named(said)} first{when}"


def too_large(board: Board, option: Option, pinned: Iterable[Instance]) -> str | None:
    """Why an option can never fit beside what is pinned, with the numbers; None when it can."""
    holders = [i for i in pinned if i.host == option.host]
    for device, needed in option.needs.items():
        budget = board.room.budget(option.host, device)
        held = sum(i.needs.get(device, 0) for i in holders)
        if budget is None or needed <= 0 or needed + held <= budget:
            continue
        where = place(board, option.host, [device])
        if needed > budget:
            return f"it needs {size(needed)} of {where}, which gives {size(budget)} at most"
        who = named(sorted({repr(i.model) for i in holders if i.needs.get(device, 0) > 0}))
        return (
            f"it needs {size(needed)} of {where}, and {size(held)} of its {size(budget)} are held by {who}, "
            "which never make room (pinned)"
        )
    return None
