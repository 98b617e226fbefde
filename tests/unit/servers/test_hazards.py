"""The table of known hazards: what it sets, what it refuses, what it leaves to the operator."""

import re
from collections.abc import Mapping

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagValue, SlotPolicy
from orchestrator.servers.hazards import TABLE, Facts, Row, erases_slots, keeps_slots, weigh
from tests import REPOSITORY

TWO_MI50 = ("rocm", "rocm")


def facts(architecture: str = "llama", *types: str, **fields: object) -> Facts:
    given = {"flags": {}, "build": 11434} | fields
    return Facts(architecture=architecture, spec_types=types or ("none",), **given)  # type: ignore[arg-type]


def ids(found: Facts) -> list[str]:
    return [hazard.id for hazard in weigh(found)]


@pytest.mark.parametrize("architecture", ["qwen35", "mamba2", "jamba"])
def test_states_of_hybrids_are_not_saved_on_several_rocm_devices(architecture: str) -> None:
    [hazard] = weigh(facts(architecture, kinds=TWO_MI50))
    assert (hazard.id, hazard.flags) == ("hybrid-several-rocm", {"ctx-checkpoints": 0, "cache-ram": 0})


@pytest.mark.parametrize(
    "safe",
    [
        facts("llama", kinds=TWO_MI50),
        facts("qwen35", kinds=("rocm",)),
        facts("qwen35", kinds=("cuda", "cuda")),
        facts("qwen35", kinds=TWO_MI50, flags={"split-mode": "none"}),
        facts("qwen35", kinds=TWO_MI50, flags={"device": "ROCm1"}),
        facts("qwen35", kinds=TWO_MI50, flags={"gpu-layers": 0}),
    ],
    ids=["not hybrid", "one device", "other devices", "not split", "one named", "on the processor"],
)
def test_others_are_left_alone(safe: Facts) -> None:
    assert weigh(safe) == ()


def test_what_an_operator_has_set_stays_and_the_hazard_is_shown() -> None:
    [hazard] = weigh(facts("qwen35", kinds=TWO_MI50, flags={"ctx-checkpoints": 8}))
    assert hazard.flags == {"cache-ram": 0}


def test_a_flag_that_the_binary_lacks_is_not_set() -> None:
    [hazard] = weigh(facts("qwen35", kinds=TWO_MI50), lambda name: name == "cache-ram")
    assert hazard.flags == {"cache-ram": 0}


@pytest.mark.parametrize(
    "bad, named",
    [
        (facts("glm4moe", "draft-mtp", flags={"mmproj": "x"}), "mtp-mmproj"),
        (facts("llama", "draft-dflash", flags={"mmproj": "x"}), "mtp-mmproj"),
        (facts("jamba", flags={"split-mode": "tensor"}), "tensor-split-architecture"),
        (facts(flags={"split-mode": "tensor", "flash-attn": "off"}), "tensor-split-flash-attention"),
        (facts("glm4moe", "draft-mtp", flags={"split-mode": "tensor"}, build=10660), "tensor-split-mtp"),
        (facts("qwen35", "draft-dflash", flags={"split-mode": "tensor"}), "tensor-split-block-drafter"),
        (facts("glm4moe", "draft-mtp", "draft-simple"), "several-drafters"),
    ],
)
def test_what_must_not_run_is_refused_by_name(bad: Facts, named: str) -> None:
    with pytest.raises(SlipstreamError) as caught:
        weigh(bad)
    assert (caught.value.code, caught.value.details) == (Code.HAZARD, {"hazards": [named]})


@pytest.mark.parametrize(
    "good, told",
    [
        (facts("llama", "ngram-mod", "draft-simple"), []),
        (facts("llama", "draft-simple", flags={"mmproj": "x"}), []),
        (facts("qwen35", "draft-mtp", flags={"split-mode": "tensor"}), ["tensor-split-experimental"]),
        (facts("glm4moe", "draft-mtp", kinds=("rocm",)), ["short-warm-up"]),
    ],
)
def test_what_may_run_is_not_refused(good: Facts, told: list[str]) -> None:
    assert ids(good) == told


def test_an_unpatched_server_gets_no_prompt_cache_and_may_then_be_told_slots() -> None:
    stock, policy = facts("qwen35", is_patched=False), SlotPolicy()
    first, second = weigh(stock)
    assert (first.id, first.flags, second.id) == ("unpatched-busy-slot", {"cache-ram": 0}, "unpatched-signal")
    assert keeps_slots(stock, policy)
    assert not keeps_slots(facts("qwen35", is_patched=False, flags={"cache-ram": 512}), policy)
    assert keeps_slots(facts("qwen35", is_patched=False, flags={"cache-ram": "0"}), policy)


@pytest.mark.parametrize("build, holds", [(4, False), (5, True), (7, True), (8, False), (None, True)])
def test_a_row_holds_for_its_builds(build: int | None, holds: bool) -> None:
    row = Row("x", "x", lambda _: True, first=5, last=7)
    assert row.holds(facts(build=build)) is holds


@pytest.mark.parametrize(
    "policy, architecture, keeps",
    [("auto", "qwen35", True), ("auto", "llama", False), ("on", "llama", True), ("off", "qwen35", False)],
)
def test_conversations_keep_their_slots(policy: str, architecture: str, keeps: bool) -> None:
    assert keeps_slots(facts(architecture), SlotPolicy.model_validate({"affinity": policy})) is keeps


@pytest.mark.parametrize(
    "policy, flags, kinds, erases",
    [
        ("auto", {}, TWO_MI50, False),
        ("auto", {"cache-ram": 0, "ctx-checkpoints": 0}, TWO_MI50, False),
        ("auto", {"cache-ram": 512}, TWO_MI50, True),
        ("auto", {"cache-ram": 512}, ("cuda",), False),
        ("on", {}, (), True),
        ("off", {"cache-ram": 512}, TWO_MI50, False),
    ],
)
def test_slots_are_erased(policy: str, flags: Mapping[str, FlagValue], kinds: tuple[str, ...], erases: bool) -> None:
    found = facts("qwen35", flags=flags, kinds=kinds)
    assert erases_slots(found, SlotPolicy.model_validate({"erase": policy})) is erases


def test_the_document_lists_the_table() -> None:
    text = (REPOSITORY / "docs" / "hazards.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \| (.*?) \| (.*) \|$", text, re.M)
    assert rows == [(row.id, builds(row), done(row), row.message) for row in TABLE]


def builds(row: Row) -> str:
    since = f"from {row.first}" if row.first else ""
    return f"{since} to {row.last}".strip() if row.last is not None else since or "all"


def done(row: Row) -> str:
    flags = ", ".join(f"`--{name} {value}`" for name, value in row.flags.items())
    return "refused" if row.refuses else flags or "told"
