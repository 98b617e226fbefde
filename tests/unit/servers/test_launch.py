from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagInfo, ModelSpec
from orchestrator.servers.drivers.base import Device
from orchestrator.servers.files import Resolved
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.launch import Launch, Site, changes, plan_launch

TARGET = Path("/cache/models/target.gguf")
DRAFTER = Path("/cache/models/drafter.gguf")
CARD = Device("CUDA0", "cuda", 24 << 30, 23 << 30)


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"name": "m", "source": {"path": "target.gguf"}} | fields)


def launch(table: FlagTable, drafter: Path | None = None, flags: dict[str, Any] | None = None, **fields: Any) -> Launch:
    if drafter is not None:
        fields["drafter"] = {"path": drafter.name}
    return plan_launch(Resolved(spec(**fields), TARGET, drafter), flags or {}, table)


def refused(table: FlagTable, drafter: Path | None = None, **fields: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        launch(table, drafter, **fields)
    assert caught.value.code is Code.INVALID_FLAG
    return caught.value


def test_what_every_server_is_told(fake_flags: FlagTable) -> None:
    assert launch(fake_flags).argv == (
        *("--model", str(TARGET), "--alias", "m", "--offline"),
        *("--metrics", "--slots", "--spec-type", "none"),
    )


def test_drafter_and_speculation_are_told(fake_flags: FlagTable) -> None:
    made = launch(fake_flags, DRAFTER, speculation={"type": "draft-simple", "n_max": 5})
    assert made.argv[-6:] == (
        *("--spec-type", "draft-simple", "--spec-draft-model", str(DRAFTER), "--spec-draft-n-max", "5"),
    )
    assert (made.spec_type, made.must_draft) == ("draft-simple", True)


def test_operator_goes_before_model_file_and_model_file_before_speculation(fake_flags: FlagTable) -> None:
    fields: dict[str, Any] = {
        "speculation": {"type": "draft-mtp", "n_max": 2},
        "server": {"spec_draft_n_max": 3, "ctx_size": 1024},
    }
    assert launch(fake_flags, **fields).argv[-4:] == ("--spec-draft-n-max", "3", "--ctx-size", "1024")
    made = launch(fake_flags, flags={"ctx-size": 2048, "spec-draft-n-max": 4}, **fields)
    assert made.argv[-4:] == ("--spec-draft-n-max", "4", "--ctx-size", "2048")


def test_clients_see_no_folder(fake_flags: FlagTable) -> None:
    shown = launch(fake_flags, DRAFTER, speculation={"type": "draft-simple"}).shown_argv
    assert "target.gguf" in shown and "drafter.gguf" in shown
    assert "/cache" not in " ".join(shown)


def test_request_defaults_do_not_change_a_launch(fake_flags: FlagTable) -> None:
    assert launch(fake_flags) == launch(fake_flags, defaults={"temperature": 0}, aliases=["n"])
    assert launch(fake_flags) != launch(fake_flags, server={"ctx_size": 1})


@pytest.mark.parametrize("kind, must", [("none", False), ("ngram-map-k", False), ("ngram-map-k,draft-mtp", True)])
def test_who_must_draft(fake_flags: FlagTable, kind: str, must: bool) -> None:
    assert launch(fake_flags, speculation={"type": kind}).must_draft is must


def test_an_unknown_type_names_the_known_ones(fake_flags: FlagTable) -> None:
    message = refused(fake_flags, speculation={"type": "draft-magic"}).message
    assert "'draft-magic'" in message and "draft-mtp" in message


def test_a_type_that_needs_a_drafter_says_so(fake_flags: FlagTable) -> None:
    assert "needs a `drafter`" in refused(fake_flags, speculation={"type": "draft-simple"}).message


def test_relaxed_acceptance_needs_the_patched_server(fake_flags: FlagTable) -> None:
    error = refused(fake_flags, speculation={"type": "draft-mtp", "relaxed_top_n": 5})
    assert "--spec-draft-relaxed-top-n" in error.message
    assert error.hint is not None and "make server" in error.hint


def test_a_model_file_is_held_to_the_same_rules_as_an_operator(fake_flags: FlagTable) -> None:
    assert "--log-file is refused" in refused(fake_flags, server={"log_file": "x"}).message


def with_gpu_flags(table: FlagTable) -> FlagTable:
    layers = FlagInfo(name="gpu-layers", names=("-ngl", "--gpu-layers", "--n-gpu-layers"), value="N", help="")
    checkpoints = FlagInfo(name="ctx-checkpoints", names=("--ctx-checkpoints",), value="N", help="")
    return replace(table, flags=(*table.flags, layers, checkpoints))


@pytest.mark.parametrize(
    "devices, server, argv",
    [
        ((), {}, ()),
        ((CARD,), {}, ("--gpu-layers", "auto")),
        ((CARD,), {"n_gpu_layers": 7}, ("--gpu-layers", "7")),
    ],
)
def test_a_server_with_an_accelerator_is_made_to_say_when_it_finds_none(
    fake_flags: FlagTable, devices: tuple[Device, ...], server: dict[str, Any], argv: tuple[str, ...]
) -> None:
    made = plan_launch(Resolved(spec(server=server), TARGET), {}, with_gpu_flags(fake_flags), Site("local", devices))
    assert made.argv[9:] == argv


def test_a_launch_that_is_bound_to_other_accelerators_is_another(fake_flags: FlagTable) -> None:
    free, bound = launch(fake_flags), launch(fake_flags, place={"devices": ["CUDA1"]})
    assert bound.devices == ("CUDA1",)
    assert free != bound and free.key != bound.key


def test_hazards_are_weighed_and_their_flags_set_where_the_binary_has_them(fake_flags: FlagTable) -> None:
    cards = (Device("ROCm0", "rocm", 1, 1), Device("ROCm1", "rocm", 1, 1))
    resolved = Resolved(spec(), TARGET, architecture="qwen35")
    made = plan_launch(resolved, {}, with_gpu_flags(fake_flags), Site("local", cards))
    hazard = next(h for h in made.hazards if h.id == "hybrid-several-rocm")
    assert hazard.flags == {"ctx-checkpoints": 0}
    assert made.argv[-2:] == ("--ctx-checkpoints", "0") and made.affinity


def test_what_differs_between_two_launches_is_told_by_name(fake_flags: FlagTable) -> None:
    plain = launch(fake_flags, server={"ctx_size": 1024})
    assert changes(plain, launch(fake_flags, server={"ctx_size": 1024}, defaults={"temperature": 0})) == ()
    more = launch(fake_flags, flags={"ctx-size": 2048}, server={"flash_attn": "on"})
    assert changes(plain, more) == changes(more, plain) == ("ctx-size", "flash-attn")
    drafts = launch(fake_flags, DRAFTER, server={"ctx_size": 1024}, speculation={"type": "draft-simple", "n_max": 5})
    assert changes(plain, drafts) == ("spec-draft-n-max", "spec-draft-model", "spec-type")
    elsewhere = plan_launch(Resolved(spec(server={"ctx_size": 1024}), TARGET), {}, fake_flags, Site("far"))
    assert changes(plain, elsewhere) == ("place.host",)
    bound = launch(fake_flags, server={"ctx_size": 1024}, place={"devices": ["CUDA1"], "image": "stock"})
    assert changes(plain, bound) == ("place.image", "place.devices")
    assert changes(plain, replace(plain, target=Path("/cache/models/other.gguf"))) == ("model",)
