"""Flags read from the real `--help` of the pinned binary, and from small texts where a rule must be shown."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.flags import FlagTable, normal, parse_help

# Every flag of the pinned binary that nobody may set over the API or in a model file. A new pin changes this list
# only after somebody has looked at what its new flags do.
MANAGED = """
    agent alias api-key api-prefix cache-list completion-bash help host list-devices log-colors log-disable log-jsonl
    log-prefix log-timestamps mcp-servers-json metrics model models-autoload models-max offline port props reuse-port
    rpc slots spec-default spec-draft-model spec-type tools tools-runtime ui ui-config ui-mcp-proxy verbose verbosity
    version
"""
PATHS = """
    api-key-file chat-template-file control-vector control-vector-scaled grammar-file json-schema-file log-file
    log-prompts-dir lookup-cache-dynamic lookup-cache-static lora lora-scaled mcp-servers-config media-path mmproj
    models-dir models-preset path slot-save-path ssl-cert-file ssl-key-file ui-config-file video-ffmpeg-dir
"""
DOWNLOADS = """
    docker-repo embd-gemma-default fim-qwen-1.5b-default fim-qwen-14b-spec fim-qwen-30b-default fim-qwen-3b-default
    fim-qwen-7b-default fim-qwen-7b-spec gpt-oss-120b-default gpt-oss-20b-default hf-file hf-repo hf-token mmproj-url
    model-url spec-draft-hf vision-gemma-12b-default vision-gemma-4b-default
"""
REMOVED = "draft draft-min spec-ngram-min-hits spec-ngram-size-m spec-ngram-size-n"


@pytest.fixture(scope="module")
def help_text(patched_server: Path) -> str:
    done = subprocess.run([patched_server, "--help"], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def table(help_text: str) -> FlagTable:
    return parse_help(help_text, "pinned")


def problem(table: FlagTable, **values: Any) -> str:
    with pytest.raises(SlipstreamError) as caught:
        table.check({name.removeprefix("_"): value for name, value in values.items()})
    assert caught.value.code is Code.INVALID_FLAG
    return caught.value.message


def test_every_line_that_names_a_flag_is_read(table: FlagTable, help_text: str) -> None:
    lines = [line for line in help_text.splitlines() if line.startswith("-") and not line.startswith("-----")]
    assert len(table.flags) == len(lines) > 200
    spellings = [word.rstrip(",") for line in lines for word in line.split() if word.startswith("-")]
    known = {name for flag in table.flags for name in flag.names}
    # Every spelling stands before the first word without a dash, and no help text begins with one.
    assert known <= set(spellings)
    assert len(known) == sum(len(flag.names) for flag in table.flags), "no spelling belongs to two flags"


@pytest.mark.parametrize(
    "name, value, names",
    [
        ("ctx-size", "N", ("-c", "--ctx-size")),
        ("kv-unified", None, ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified")),
        ("flash-attn", "[on|off|auto]", ("-fa", "--flash-attn")),
        ("predict", "N", ("-n", "--predict", "--n-predict")),
        ("tensor-split", "N0,N1,N2,...", ("-ts", "--tensor-split")),
        ("spec-draft-relaxed-top-n", "N", ("--spec-draft-relaxed-top-n",)),
    ],
)
def test_names_and_values_are_told_apart(
    table: FlagTable, name: str, value: str | None, names: tuple[str, ...]
) -> None:
    [flag] = [flag for flag in table.flags if flag.name == name]
    assert (flag.value, flag.names) == (value, names)
    assert flag.help


def test_environment_variables_and_choices_are_read(table: FlagTable) -> None:
    by_name = {flag.name: flag for flag in table.flags}
    assert by_name["ctx-size"].env == "LLAMA_ARG_CTX_SIZE"
    assert by_name["split-mode"].choices == ("none", "layer", "row", "tensor")
    assert {"none", "draft-mtp", "ngram-map-k"} <= set(table.choices_of("spec-type"))
    assert table.choices_of("ctx-size") == ()


def test_every_refused_flag_is_listed_here(table: FlagTable) -> None:
    refused = {flag.name for flag in table.flags if flag.refused}
    assert refused == {*MANAGED.split(), *PATHS.split(), *DOWNLOADS.split(), *REMOVED.split()}


def test_whatever_speaks_of_a_path_is_refused(table: FlagTable) -> None:
    suspicious = ("FNAME", "FILE", "PATH", "DIR")
    loose = [f.name for f in table.flags if f.value and any(w in f.value for w in suspicious) and not f.refused]
    assert loose == []


@pytest.mark.parametrize(
    "name", ["m", "-m", "--model", "model", "log_file", "--slot-save-path", "api_key_file", "lora"]
)
def test_path_flags_are_refused_by_name(table: FlagTable, name: str) -> None:
    message = problem(table, **{f"_{name}": "/etc/passwd"})
    assert "refused" in message
    assert name.lstrip("-").replace("_", "-") in message
    assert "/etc/passwd" not in message


@pytest.mark.parametrize(
    "name, nearest",
    [("draft_max", "spec-draft-n-max"), ("--draft-max", "spec-draft-n-max"), ("draft-min", "spec-draft-n-min")],
)
def test_removed_flags_are_refused_with_what_replaces_them(table: FlagTable, name: str, nearest: str) -> None:
    message = problem(table, **{f"_{name}": 4})
    assert f"--{normal(name)} is refused: the argument has been removed" in message
    assert message.endswith(f"the nearest is --{nearest}")


@pytest.mark.parametrize(
    "name, nearest",
    [("ctxsize", "ctx-size"), ("paralel", "parallel"), ("flash-attention", "flash-attn"), ("spec_draft_max", None)],
)
def test_unknown_flags_are_refused_with_the_nearest(table: FlagTable, name: str, nearest: str | None) -> None:
    message = problem(table, **{f"_{name}": 4})
    assert f"--{normal(name)} is not a flag of this llama-server" in message
    assert "the nearest is --" + (nearest or "spec-draft-n-max") in message


def test_the_nearest_is_never_one_that_is_refused(table: FlagTable) -> None:
    for flag in table.flags:
        for name in flag.names:
            near = table.nearest(f"{name}x")
            assert near is None or table.check({near: _some_value(table, near)})


def _some_value(table: FlagTable, name: str) -> bool | int | str:
    [flag] = [flag for flag in table.flags if f"--{name}" in flag.names or f"-{name}" in flag.names]
    return True if flag.value is None else flag.choices[0] if flag.choices else 1


def test_all_problems_are_told_at_once(table: FlagTable) -> None:
    message = problem(table, _nonsense=1, _log_file="x", _flash_attn="maybe")
    assert "--nonsense" in message and "--log-file" in message and "--flash-attn" in message


@pytest.mark.parametrize("name", ["ctx-size", "ctx_size", "--ctx-size", "-c", "c", "--ctx_size"])
def test_spellings_lead_to_one_name(table: FlagTable, name: str) -> None:
    assert table.check({name: 512}) == {"ctx-size": 512}


def test_two_spellings_of_one_flag_are_refused(table: FlagTable) -> None:
    assert "another spelling of --ctx-size" in problem(table, _ctx_size=1, _c=2)


@pytest.mark.parametrize(
    "values, argv",
    [
        ({"kv-unified": True}, ["--kv-unified"]),
        ({"kv-unified": False}, ["--no-kv-unified"]),
        ({"swa-full": True}, ["--swa-full"]),
        ({"swa-full": False}, []),
        ({"flash-attn": True}, ["--flash-attn", "on"]),
        ({"flash-attn": False}, ["--flash-attn", "off"]),
        ({"flash-attn": "auto"}, ["--flash-attn", "auto"]),
        ({"ctx-size": 4096, "temp": 0.5}, ["--ctx-size", "4096", "--temp", "0.5"]),
        ({"seed": -1}, ["--seed", "-1"]),
        ({"gpu-layers": "all"}, ["--gpu-layers", "all"]),
        ({"tensor-split": "3,1"}, ["--tensor-split", "3,1"]),
    ],
)
def test_values_become_arguments(table: FlagTable, values: dict[str, Any], argv: list[str]) -> None:
    assert table.argv(table.check(values)) == argv


@pytest.mark.parametrize(
    "name, value",
    [
        ("kv-unified", "yes"),
        ("kv-unified", 1),
        ("ctx-size", True),
        ("ctx-size", "many"),
        ("ctx-size", ""),
        ("ctx-size", "12 --log-file x"),
        ("flash-attn", "maybe"),
        ("spec-draft-p-min", "often"),
        ("split-mode", "column"),
        ("device", "--log-file"),
        ("device", "a\0b"),
        ("device", ""),
    ],
)
def test_wrong_values_are_named(table: FlagTable, name: str, value: Any) -> None:
    assert f"--{name}" in problem(table, **{f"_{name}": value})


def test_has_knows_what_is_there_and_not_removed(table: FlagTable) -> None:
    assert table.has("ctx-size") and table.has("ctx_size")
    assert not table.has("draft-max") and not table.has("nonsense")
    assert table.check({"n_predict": 1}) == {"predict": 1}


def test_the_unpatched_server_has_no_relaxed_acceptance(unpatched_server: Path, table: FlagTable) -> None:
    done = subprocess.run([unpatched_server, "--help"], capture_output=True, text=True, check=True)
    plain = parse_help(done.stdout, "pinned")
    ours = {flag.name for flag in table.flags} - {flag.name for flag in plain.flags}
    assert ours == {"spec-draft-relaxed-top-n", "spec-draft-relaxed-min-ratio"}


def test_a_text_that_is_no_help_has_no_flags() -> None:
    assert parse_help("segmentation fault\n", "x").flags == ()
