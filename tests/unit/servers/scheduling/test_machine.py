"""Any order of requests, commands, failures and time: the invariants hold, and everybody who waits is served.

`SLIPSTREAM_TEST_PLAN_EXAMPLES=5000` looks deeper: as many runs, longer ones, other ones each time.
"""

import os
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from orchestrator.servers.scheduling import Phase, plan
from tests.unit.servers.scheduling.fleet import Fleet, Kept
from tests.unit.servers.scheduling.weather import LOADS, NAMES, fair_weather

EXAMPLES = int(os.environ.get("SLIPSTREAM_TEST_PLAN_EXAMPLES", "0"))
BUDGETS = {"near": {"CUDA0": 10, "CUDA1": 6, "host": 16}, "far": {"CUDA0": 8}}
PRIORITIES = (-1, 0, 0, 0, 1)
Way = tuple[str, Mapping[str, int]]
WAYS: tuple[Way, ...] = (
    ("near", {"CUDA0": 4, "host": 1}),
    ("near", {"CUDA0": 7}),
    ("near", {"CUDA0": 10, "CUDA1": 4, "host": 3}),
    ("near", {"CUDA1": 3, "host": 6}),
    ("near", {"CUDA0": 11}),
    ("far", {"CUDA0": 3}),
    ("far", {"CUDA0": 8, "CUDA9": 100}),
)
names = st.sampled_from(NAMES)
numbers = st.integers(0, 30)
kept_models = st.tuples(
    st.lists(st.sampled_from(WAYS), min_size=1, max_size=2),
    st.sampled_from(LOADS),
    st.sampled_from(PRIORITIES),
    st.sampled_from((None, None, "g")),
    st.sampled_from((None, 5.0)),
    st.sampled_from((False, False, False, True)),
    st.sampled_from((False, False, False, False, False, True)),
    st.sampled_from((1, 2)),
)
EDITS: dict[str, tuple[Any, ...]] = {
    "pinned": (True, False, False),
    "wanted": (True, False),
    "priority": PRIORITIES,
    "group": (None, "g", "h"),
    "idle_seconds": (None, 5.0),
    "ways": ((), WAYS[:1], WAYS[1:3], WAYS[5:]),
}


class Machine(RuleBasedStateMachine):
    """The fleet under everything that may happen; each run ends with fair weather, in which nobody may starve."""

    @initialize(drawn=st.tuples(*[kept_models] * len(NAMES)))
    def begin(self, drawn: tuple[tuple[Any, ...], ...]) -> None:
        models = [
            Kept(name, tuple(ways), load, priority, pinned, wanted, group, idle, concurrent)
            for name, (ways, load, priority, group, idle, wanted, pinned, concurrent) in zip(NAMES, drawn, strict=True)
        ]
        self.fleet = Fleet(BUDGETS, models)
        self.fleet.settle()

    @rule(wishes=st.lists(names, min_size=1, max_size=4))
    def requests_arrive(self, wishes: list[str]) -> None:
        for name in wishes:
            self.fleet.request(name)
        assert plan(self.fleet.world()) == plan(self.fleet.world()), "equal worlds get equal decisions"
        self.fleet.settle()

    @rule(name=names)
    def client_leaves(self, name: str) -> None:
        del self.fleet.models[name].waiting[:1]
        self.fleet.settle()

    @rule(n=numbers)
    def answer_ends(self, n: int) -> None:
        if number := self.pick(n, *Phase, busy=True):
            self.fleet.answer_ends(number)
            self.fleet.settle()

    @rule(n=numbers, well=st.sampled_from((True, True, True, False)))
    def load_ends(self, n: int, well: bool) -> None:
        if number := self.pick(n, Phase.LOADING):
            self.fleet.load_ends(number, well=well)
            self.fleet.settle()

    @rule()
    def all_loads_end(self) -> None:
        for number in [i.id for i in self.fleet.instances.values() if i.phase is Phase.LOADING]:
            self.fleet.load_ends(number, well=True)
        self.fleet.settle()

    @rule(n=numbers)
    def memory_is_back(self, n: int) -> None:
        if number := self.pick(n, Phase.STOPPING):
            self.fleet.dies(number)
            self.fleet.settle()

    @rule(n=numbers)
    def server_dies(self, n: int) -> None:
        if number := self.pick(n, *Phase):
            self.fleet.dies(number)
            self.fleet.settle()

    @rule(seconds=st.sampled_from((0.25, 2.0, 6.0, 40.0)))
    def time_passes(self, seconds: float) -> None:
        self.fleet.pass_time(seconds)

    @rule(name=names, replaces=st.sampled_from(((), (), ("a",), ("b", "c"), ("d", "e", "f"))), renewed=st.booleans())
    def operator_brings(self, name: str, replaces: tuple[str, ...], renewed: bool) -> None:
        self.fleet.bring(name, replaces, renewed=renewed)
        self.fleet.settle()

    @rule(name=names)
    def operator_stops(self, name: str) -> None:
        self.fleet.take_down(name)
        self.fleet.settle()

    @rule(name=names, edit=st.sampled_from([(key, value) for key, values in EDITS.items() for value in values]))
    def model_file_changes(self, name: str, edit: tuple[str, Any]) -> None:
        setattr(self.fleet.models[name], *edit)
        self.fleet.models[name].version += edit[0] == "ways"
        self.fleet.settle()

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            for kept in self.fleet.models.values():
                kept.ways = kept.ways or WAYS[:1]
            fair_weather(self.fleet)

    def pick(self, n: int, *phases: Phase, busy: bool = False) -> int | None:
        found = [i.id for i in self.fleet.instances.values() if i.phase in phases and (i.running or not busy)]
        return found[n % len(found)] if found else None


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=EXAMPLES or 20,
    stateful_step_count=60 if EXAMPLES else 30,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    # A failure is made small only where there is time for it: that takes minutes.
    phases=[stage for stage in Stage if EXAMPLES or stage is not Stage.shrink],
    suppress_health_check=list(HealthCheck),
)
