"""Small worlds for tests: one host with 10 GiB on CUDA0, launches named after their model, decisions in short."""

from typing import Any

from orchestrator.servers.scheduling import Decision, Drain, Instance, Model, Option, Phase, Rules, Start, World

GIB = 1 << 30
NOW = 1000.0
RULES = Rules()


def option(launch: str, gib: float = 4, *, host: str = "local", device: str = "CUDA0") -> Option:
    return Option(host, launch, {device: int(gib * GIB)})


def model(name: str, gib: float = 4, **fields: Any) -> Model:
    """A model whose one launch is named like it."""
    return Model(name, **({"options": (option(name, gib),)} | fields))


def waits(name: str, gib: float = 4, **fields: Any) -> Model:
    """One for which a request waits since ten seconds."""
    return model(name, gib, **({"waiting": 1, "waiting_since": NOW - 10} | fields))


def runs(name: str, gib: float = 4, **fields: Any) -> Instance:
    """A ready one that has been idle for 50 s; its turn has long been over. Its id is the letter's place."""
    given: dict[str, Any] = {
        "model": name,
        "id": ord(name[0]) - ord("a") + 1,
        "host": "local",
        "launch": name,
        "needs": {"CUDA0": int(gib * GIB)},
        "phase": Phase.READY,
        "since": NOW - 100,
        "idle_since": NOW - 50,
        "load_seconds": 5.0,
    }
    return Instance(**(given | fields))


def world(*things: Model | Instance, now: float = NOW, rules: Rules = RULES, **gib: float) -> World:
    """Models and instances on `local`, whose devices have the GiB given; CUDA0 has 10 if none is."""
    budgets = {"local": {device: int(size * GIB) for device, size in (gib or {"CUDA0": 10}).items()}}
    return world_of(budgets, *things, now=now, rules=rules)


def world_of(
    budgets: dict[str, dict[str, int]], *things: Model | Instance, now: float = NOW, rules: Rules = RULES
) -> World:
    models = tuple(thing for thing in things if isinstance(thing, Model))
    instances = tuple(thing for thing in things if isinstance(thing, Instance))
    return World(now, models, instances, budgets, rules)


def done(decision: Decision) -> list[str]:
    """The actions in short: `start b`, `drain 1`, `stop 1`."""
    short = []
    for action in decision.actions:
        if isinstance(action, Start):
            short.append(f"start {action.option.launch}")
        else:
            short.append(f"{'drain' if isinstance(action, Drain) else 'stop'} {action.instance}")
    return short


def whys(decision: Decision) -> list[str]:
    return [action.why for action in decision.actions]
