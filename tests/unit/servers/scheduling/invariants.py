"""What holds of every decision, told from the world alone: written apart from the code that decides."""

from collections import Counter
from dataclasses import replace

from orchestrator.servers.scheduling import Decision, Drain, Instance, Model, Phase, Start, Stop, World, plan

ALIVE = (Phase.LOADING, Phase.READY)
# Waits that no memory would end.
OTHER_WAITS = ("it is being", "it rests", "there is no launch")


def check(world: World, decision: Decision) -> None:
    """Every invariant of one decision."""
    ids = [action.instance for action in decision.actions if not isinstance(action, Start)]
    assert len(ids) == len(set(ids)), f"two actions for one instance: {decision.actions}"
    for action in decision.actions:
        if isinstance(action, Start):
            _check_start(world, action)
        else:
            _check_end(world, action)
    _check_memory(world, decision)
    _check_words(world, decision)


def check_world(world: World, decision: Decision) -> None:
    """What holds when everything has been done: at most one of a model, and nothing is missed until it wakes."""
    alive = [i for i in world.instances if i.phase in ALIVE]
    twice = [key for key, n in Counter((i.model, i.launch) for i in alive).items() if n > 1]
    assert not twice, f"two of one launch: {twice}"
    current = Counter(i.model for i in alive if _is_current(world, i) and _model(world, i.model).options)
    assert all(n == 1 for n in current.values()), f"two current ones of a model: {current}"
    ready = {i.model for i in alive if i.phase is Phase.READY and _is_current(world, i)}
    old = [i for i in alive if not _is_current(world, i) and (i.phase is Phase.LOADING or i.model in ready)]
    assert not old, f"old versions that nobody needs: {old}"
    wake_at = world.now + 10_000 if decision.wake_at is None else decision.wake_at
    assert wake_at > world.now, "it would wake at once, again and again"
    earlier = plan(replace(world, now=world.now + (wake_at - world.now) * 0.96875))
    assert not earlier.actions, f"it sleeps until {wake_at} and would miss {earlier.actions}"


def _check_start(world: World, start: Start) -> None:
    model = _model(world, start.model)
    assert start.option in model.options and not model.leaving
    rivals = [i for i in world.instances if i.model == model.name and i.phase in ALIVE and _is_current(world, i)]
    assert not rivals, f"{model.name} is started twice"
    assert model.asked or ((model.waiting or model.wanted) and world.now >= model.not_before), "nobody needs it"
    group = [i for i in world.instances if i.model != model.name and model.group and _group(world, i) == model.group]
    assert not group, f"{model.name} starts beside {group}"


def _check_end(world: World, action: Drain | Stop) -> None:
    instance = next(i for i in world.instances if i.id == action.instance)
    model = _model(world, instance.model)
    if isinstance(action, Drain):
        assert instance.phase is Phase.READY and instance.running and action.until >= world.now
    else:
        is_over = instance.phase is Phase.DRAINING and world.now >= instance.drain_until
        assert instance.phase is not Phase.STOPPING and (instance.running == 0 or is_over), "an answer is cut"
    if (
        instance.phase is Phase.DRAINING
        or model.leaving
        or _is_replaced(world, model)
        or _is_superseded(world, instance)
    ):
        return
    assert not model.pinned, "a pinned one has to go"
    assert not (model.asked and _is_current(world, instance)), "one that was asked for has to go"
    if any(other.asked for other in world.models):
        return
    if instance.phase is Phase.LOADING:
        assert not model.waiting and not model.wanted, "a load is given up that somebody waits for"
    elif instance.running or model.waiting:
        turn = min(max(world.rules.turn_loads * instance.load_seconds, 1), world.rules.turn_most_seconds)
        assert world.now >= instance.since + turn, "its turn is not over"


def _check_memory(world: World, decision: Decision) -> None:
    held: Counter[tuple[str, str]] = Counter()
    starts = [(a.option.host, a.option.needs) for a in decision.actions if isinstance(a, Start)]
    for host, needs in [(i.host, i.needs) for i in world.instances] + starts:
        held.update({(host, device): size for device, size in needs.items()})
    over = {k: n for k, n in held.items() if n > world.budgets.get(k[0], {}).get(k[1], n)}
    assert not over, f"more than the budget: {over}"
    groups = Counter(_model(world, a.model).group for a in decision.actions if isinstance(a, Start))
    assert all(n == 1 for group, n in groups.items() if group), "two of a group start"


def _check_words(world: World, decision: Decision) -> None:
    assert not decision.waits.keys() & decision.refusals.keys()
    started = [action.model for action in decision.actions if isinstance(action, Start)]
    assert len(started) == len(set(started)), "two starts of a model"
    assert all(action.why for action in decision.actions)
    ended = {action.instance for action in decision.actions if not isinstance(action, Start)}
    stays = [i for i in world.instances if i.phase in ALIVE and i.id not in ended]
    for model in world.models:
        serves = any(i.model == model.name and i.phase in ALIVE and _is_current(world, i) for i in world.instances)
        told = [model.name in decision.waits, model.name in decision.refusals, model.name in started]
        if (model.asked or model.waiting) and not serves:
            assert sum(told) == 1, f"nobody hears of {model.name}: {decision}"
        elif not any(i.model == model.name and i.id in ended for i in world.instances):
            assert not any(told[:2]), f"{model.name} waits for nothing: {decision}"
        wait = decision.waits.get(model.name, "")
        if model.name in decision.refusals:
            # A pinned model that is being renewed gives its memory to nobody else.
            renewed = [
                i for i in world.instances if i.phase is Phase.READY and i.model in decision.waits and i not in stays
            ]
            others = [i for i in stays + renewed if not model.asked or i.model not in model.replaces]
            assert _is_out_of_reach(world, model, others), f"refused without need: {decision.refusals[model.name]}"
        elif wait and not wait.startswith(OTHER_WAITS):
            others = [i for i in stays if not _is_replaced(world, _model(world, i.model))]
            assert not _is_out_of_reach(world, model, others), f"it would wait for ever: {wait}"


def _is_out_of_reach(world: World, model: Model, stays: list[Instance]) -> bool:
    """Whether no option could start even if all went that ever may."""
    held = [i for i in stays if i.model != model.name and _model(world, i.model).pinned]
    if model.group and any(_group(world, i) == model.group for i in held):
        return True
    for option in model.options:
        beside = [i.needs for i in held if i.host == option.host]
        budgets = world.budgets.get(option.host, {})
        used = {device: size + sum(n.get(device, 0) for n in beside) for device, size in option.needs.items()}
        if all(size <= budgets.get(device, size) for device, size in used.items()):
            return False
    return True


def _model(world: World, name: str) -> Model:
    return next(model for model in world.models if model.name == name)


def _group(world: World, instance: Instance) -> str | None:
    return _model(world, instance.model).group


def _is_current(world: World, instance: Instance) -> bool:
    options = _model(world, instance.model).options
    return not options or instance.launch in [option.launch for option in options]


def _is_replaced(world: World, model: Model) -> bool:
    return any(other.asked and model.name in other.replaces for other in world.models if other.name != model.name)


def _is_superseded(world: World, instance: Instance) -> bool:
    """Whether it is an old version, or another current one of its model is there."""
    others = [i for i in world.instances if i.model == instance.model and i.id != instance.id and i.phase in ALIVE]
    return not _is_current(world, instance) or any(_is_current(world, i) for i in others)
