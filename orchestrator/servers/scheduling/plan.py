"""Who starts, who drains, who stops, who waits, and why."""

from orchestrator.servers.scheduling.board import ALIVE, Board
from orchestrator.servers.scheduling.placement import Outcome, best_offer, fits_alone, never
from orchestrator.servers.scheduling.victims import is_idle, may_replace
from orchestrator.servers.scheduling.words import makes_room, named
from orchestrator.servers.scheduling.world import Decision, Instance, Model, Phase, World


def plan(world: World) -> Decision:
    """The decision for one moment; equal worlds get equal decisions.

    Those that wait are served in order. Each takes what is free or speaks for what will be, by having others go if
    need be, and no later one touches that. So the first in order is served once those before it have had their turn,
    and everybody becomes the first.
    """
    board = Board(world)
    for instance in world.instances:
        _end_if_over(board, instance)
    for name in board.instances:
        _renew(board, board.model(name))
    _replace(board)
    for instance in world.instances:
        if instance.phase is Phase.READY and instance.id not in board.going:
            _end_if_idle(board, instance)
    for model in sorted(filter(lambda m: _is_demand(board, m), world.models), key=board.order):
        _serve(board, model)
    for model in sorted(filter(lambda m: _is_wished(board, m), world.models), key=lambda m: (-m.priority, m.name)):
        _bring_back(board, model)
    return board.decision()


def _end_if_over(board: Board, instance: Instance) -> None:
    if instance.phase is Phase.DRAINING:
        if instance.running == 0:
            board.stop(instance, "nothing runs on it any more")
        elif board.now >= instance.drain_until:
            board.stop(instance, "its answers did not end in time")
        else:
            board.wake(instance.drain_until)
    elif instance.phase in ALIVE and board.model(instance.model).leaving:
        board.send_off(instance, "asked to stop")


def _renew(board: Board, model: Model) -> None:
    """Have old versions go as soon as they are not needed, and all but one of the current ones."""
    alive = board.alive(model.name)
    if not model.options or not alive:
        return
    launches = [option.launch for option in model.options]
    current = [i for i in alive if i.launch in launches]
    kept = min(current, key=lambda i: (i.phase is not Phase.READY, launches.index(i.launch), i.id), default=None)
    for instance in alive:
        if instance is kept:
            continue
        if instance.launch in launches:
            board.send_off(instance, "another server of its model runs")
        elif instance.phase is Phase.LOADING:
            board.send_off(instance, "it is to run otherwise now")
        elif kept is not None and kept.phase is Phase.READY:
            board.send_off(instance, "its new version is ready")


def _replace(board: Board) -> None:
    """Have those go whose place has been taken."""
    for model in board.swaps:
        current = board.current(model.name)
        if current is None or current.phase is not Phase.READY:
            continue
        for name in dict.fromkeys(model.replaces):
            for instance in board.alive(name):
                if name != model.name and may_replace(board, model, instance):
                    board.send_off(instance, f"replaced by {model.name!r}")


def _end_if_idle(board: Board, instance: Instance) -> None:
    model = board.model(instance.model)
    if model.idle_seconds is None or model.pinned or model.wanted or model.asked or not is_idle(board, instance):
        return
    at = instance.idle_since + model.idle_seconds
    if board.now >= at:
        board.stop(instance, f"idle for {board.now - instance.idle_since:.0f} s")
    else:
        board.wake(at)


def _is_demand(board: Board, model: Model) -> bool:
    return (model.asked or model.waiting > 0) and board.current(model.name) is None


def _is_wished(board: Board, model: Model) -> bool:
    """Whether it is wanted, and nobody waits for it: then it comes back where there is room."""
    is_demand = model.asked or model.waiting > 0
    return model.wanted and not is_demand and not model.leaving and not board.instances.get(model.name)


def _serve(board: Board, model: Model) -> None:
    """Start it, or make room for it, or say why neither."""
    if model.leaving:
        board.waits[model.name] = "it is being stopped"
    elif model.name in board.held:
        board.waits[model.name] = f"it is being replaced by {board.held[model.name].name!r}"
    elif not model.asked and board.now < model.not_before:
        board.waits[model.name] = "it rests after it failed"
        board.wake(model.not_before)
    elif not model.options:
        board.waits[model.name] = "there is no launch for it yet"
    else:
        _make_room(board, model)


def _make_room(board: Board, model: Model) -> None:
    offer = best_offer(board, model)
    if offer.outcome is Outcome.NEVER:
        reasons = dict.fromkeys(never(board, model, option) or offer.why for option in model.options)
        board.refusals[model.name] = named(reasons, "or")
        return
    if offer.outcome is Outcome.FITS:
        board.start(model, offer.option, "asked to start" if model.asked else "requests wait for it")
        return
    board.waits[model.name] = offer.why
    if offer.outcome is Outcome.EVICT:
        for c in offer.goes:
            board.send_off(c.instance, makes_room(board, model, offer.option, c.instance, offer.short))
    if offer.outcome is Outcome.LATER:
        board.wake(offer.at)
    if offer.outcome is not Outcome.BEHIND:
        waits_for = [c.instance for c in offer.goes if c.instance.id not in board.going | board.taken]
        board.claim(model, offer.option, waits_for)


def _bring_back(board: Board, model: Model) -> None:
    if model.name in board.held:
        return
    if board.now < model.not_before:
        board.wake(model.not_before)
        return
    option = fits_alone(board, model)
    if option is not None:
        board.start(model, option, "it is to be kept running")
