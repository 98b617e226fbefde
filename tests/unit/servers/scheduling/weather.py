"""Fair weather for a fleet: whatever happened before, from here on nobody may starve."""

from orchestrator.servers.scheduling import Phase
from tests.unit.servers.scheduling.fleet import RULES, Fleet

NAMES = "abcdef"
STOP_SECONDS = 1.0
# Exact in binary: the clock has no rounding.
LOADS = (0.25, 1.0, 4.0)
# The longest that one model may keep the others waiting: its load, its turn, its drain, and until its memory is back.
CYCLE_SECONDS = max(LOADS) + RULES.turn_most_seconds + RULES.drain_seconds + STOP_SECONDS
# All go before it once, after as long as priority is worth; it has failed before, and there is what began before.
BOUND_SECONDS = (len(NAMES) + 2) * CYCLE_SECONDS + 2 * RULES.priority_seconds + 30


def fair_weather(fleet: Fleet) -> None:
    """Loads succeed in their time and memory comes back. First under the worst load: everybody always has requests, and
    no answer ends by itself. Every model is served within the bound, again and again, or refused. Then nothing arrives
    any more, and all comes to rest.
    """
    served = dict.fromkeys(fleet.models, fleet.now)
    fleet.on_lease = lambda name: served.update({name: fleet.now})
    fleet.on_refusal = fleet.on_lease
    end = fleet.now + 1.1 * BOUND_SECONDS
    while fleet.now < end:
        for name, kept in fleet.models.items():
            if not kept.waiting:
                fleet.request(name)
        next_event(fleet)
        for name, at in served.items():
            if fleet.serving(name) is not None:
                served[name] = fleet.now
            assert fleet.now - at < BOUND_SECONDS, f"{name} starves: {fleet.decision.waits.get(name)}"
    for _ in range(300):
        if not any(kept.waiting or kept.command for kept in fleet.models.values()):
            return
        for instance in list(fleet.instances.values()):
            while fleet.instances[instance.id].running:
                fleet.answer_ends(instance.id)
        next_event(fleet)
    left = [kept.name for kept in fleet.models.values() if kept.waiting or kept.command]
    assert not left, f"{left} wait for ever: {fleet.decision.waits}"


def next_event(fleet: Fleet) -> None:
    """Move the clock to what comes next: a load or a stop that ends, or a time to wake."""
    fleet.settle()
    ends = {i.id: i.since + i.load_seconds for i in fleet.instances.values() if i.phase is Phase.LOADING}
    ends |= {i.id: i.since + STOP_SECONDS for i in fleet.instances.values() if i.phase is Phase.STOPPING}
    soonest = min(ends.values(), default=fleet.now + 1)
    if fleet.decision.wake_at is not None:
        soonest = min(soonest, fleet.decision.wake_at)
    fleet.now = max(fleet.now, soonest)
    for number, at in ends.items():
        if at <= fleet.now:
            if fleet.instances[number].phase is Phase.LOADING:
                fleet.load_ends(number, well=True)
            else:
                fleet.dies(number)
    fleet.settle()
